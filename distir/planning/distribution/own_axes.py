"""Layouts for opaque modules that communicate over mesh axes on their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, SSAValue

from distir.dialects.dist import Layout, Shard
from distir.dialects.tensors import rank_of, shape_of
from distir.dialects.train_ops.opaque import OpaqueBase
from distir.errors import DistIRError
from distir.planning.requests import request
from distir.program import (
    argument_names,
    argument_roles,
    describe,
    entry_function,
    parameters_of_states,
    reachable_functions,
)
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.rule import AxisDims, rule_for


@dataclass(frozen=True)
class _OwnSplit:
    """
    An operand or result of an op, with the dimension that a mesh axis splits by the
    op's own declaration.
    """

    op: OpaqueBase
    value: SSAValue
    dim: int


def _splits(module: ModuleOp, axis: str) -> Iterator[_OwnSplit]:
    for function in reachable_functions(module):
        for op in function.body.block.ops:
            if not isinstance(op, OpaqueBase):
                continue
            for own in rule_for(op).own_axes:
                if own.axis == axis:
                    yield from _of(op, own)


def _of(op: OpaqueBase, own: AxisDims) -> Iterator[_OwnSplit]:
    values: Sequence[SSAValue] = (*op.operands, *op.results)
    for value, dim in zip(values, (*own.operands, *own.results), strict=True):
        if dim is not None:
            yield _OwnSplit(op, value, dim)


def own_sizes(module: ModuleOp, axis: str) -> set[int]:
    """
    Returns the sizes of the dimensions that opaque modules of a program split over
    `axis`. These modules communicate over the axis on their own.
    """
    return {shape_of(s.value)[s.dim] for s in _splits(module, axis)}


def request_own_axes(module: ModuleOp, mesh: Mesh) -> None:
    """
    Requests the declared layouts for parameters of modules that communicate on their
    own, and for the states of these parameters. Raises DistIRError if an axis does not
    divide a dimension that it splits.
    """
    for axis, size in mesh.axes:
        if size == 1 or axis == TIME_AXIS:
            continue
        wanted: dict[int, int] = {}
        for split in _splits(module, axis):
            length = shape_of(split.value)[split.dim]
            if length % size:
                raise DistIRError(
                    f"{describe(split.op)}: the opaque module {split.op.symbol!r} splits a "
                    f"dimension of {length} elements over axis {axis!r}, whose {size} "
                    f"devices do not divide it; choose another -{axis}"
                )
            for index in _arguments(module, split.value):
                wanted[index] = split.dim
        _request(module, mesh, axis, wanted)


def _request(module: ModuleOp, mesh: Mesh, axis: str, wanted: dict[int, int]) -> None:
    function = entry_function(module)
    roles = argument_roles(function)
    types = function.function_type.inputs.data
    states = parameters_of_states(function)
    for index in range(len(types)):
        owner = states.get(index, index)
        if owner not in wanted or roles[owner] != "parameter":
            continue
        if index != owner and shape_of(types[index]) != shape_of(types[owner]):
            continue
        layout = Layout(mesh.name).with_dim(
            wanted[owner], (Shard(axis),), rank_of(types[index])
        )
        origin = f"the rule of its opaque module ({argument_names(function)[owner]!r})"
        request(function, index, layout, [axis], origin)


def _arguments(module: ModuleOp, value: SSAValue) -> Iterator[int]:
    """
    Yields the indices of the entry function's arguments that are the same value as
    `value`. If `value` is an argument of another function, follows that function's
    calls. Yields nothing if `value` is not an argument.
    """
    if not isinstance(value, BlockArgument):
        return
    function = value.owner.parent_op()
    assert isinstance(function, FuncOp)
    if function is entry_function(module):
        yield value.index
        return
    name = function.sym_name.data
    for caller in reachable_functions(module):
        for op in caller.body.block.ops:
            if isinstance(op, CallOp) and op.callee.string_value() == name:
                yield from _arguments(module, op.operands[value.index])
