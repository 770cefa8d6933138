"""
Support for `tensor`: sharding rules and evaluation of ops that make tensors, change
shapes, or take and replace parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects import tensor
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    TensorType,
    i64,
)
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Operation

from distir.dialects.tensors import shape_of
from distir.foreign.elementwise import dtype_of
from distir.interpreters.implementations import register_reference_implementations
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Factor, Linear, Rule, sharding_rule
from distir.sharding.rules.builder import ANY, RuleBuilder
from distir.sharding.rules.elementwise import elementwise_rule

# A tensor of equal elements can be made in any layout.
sharding_rule("tensor.empty", "tensor.splat")(elementwise_rule())
sharding_rule("tensor.cast")(elementwise_rule("first"))


@sharding_rule("tensor.expand_shape", "tensor.collapse_shape")
def reassociation_rule(op: Operation) -> Rule:
    """
    Returns the sharding rule of an op that collapses groups of dimensions into one
    dimension each, or expands dimensions into groups. The dimensions of the longer
    shape are the factors. Tensors of dynamic shape are replicated.
    """
    source, result = op.operands[0].type, op.results[0].type
    assert isinstance(source, TensorType) and isinstance(result, TensorType)
    shapes = [source.get_shape(), result.get_shape()]
    if any(d < 0 for shape in shapes for d in shape) or len(op.operands) > 1:
        return Rule.replicated(op)
    groups: Any = op.properties["reassociation"]
    joined: tuple[Dim, ...] = tuple(
        tuple(i.value.data for i in group.data if isinstance(i, IntegerAttr))
        for group in groups.data
        if isinstance(group, ArrayAttr)
    )
    long = max(shapes, key=len)
    own: tuple[Dim, ...] = tuple((i,) for i in range(len(long)))
    expands = len(result.get_shape()) > len(source.get_shape())
    before, after = (joined, own) if expands else (own, joined)
    return Rule(
        factors=tuple(map(Factor, long)),
        operands=(before,),
        results=(after,),
        linear=(Linear(frozenset({0}), frozenset({"sum", "max", "min"})),),
    )


@sharding_rule("tensor.concat")
def concat_rule(op: Operation) -> Rule:
    """
    Returns the sharding rule of a concatenation. All dimensions except the concatenated
    dimension are factors.
    """
    build, joined = RuleBuilder(op), op.properties["dim"]
    assert isinstance(joined, IntegerAttr)
    dims = tuple(
        () if dim == joined.value.data else build.factor(size)
        for dim, size in enumerate(shape_of(op.results[0]))
    )
    every = range(len(op.operands))
    return build.rule(
        [dims for _ in every], [dims], linear=[list(every)], reductions=ANY
    )


@dataclass(frozen=True)
class ConstantPart:
    """
    The part of a tensor, with constant bounds, that an `extract_slice` reads or an
    `insert_slice` replaces.

    - `shape`: the shape of the whole tensor;
    - `sizes`: the sizes of the part, one for each dimension of the whole tensor;
    - `kept`: the dimensions that remain when the part is a tensor of its own, which may
      lack dimensions of size 1;
    - `full`: the dimensions along which the part covers the whole tensor.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    full: tuple[int, ...]

    @staticmethod
    def of(op: Operation) -> ConstantPart | None:
        """
        Returns the part that an `extract_slice` or `insert_slice` reads or replaces.
        Returns None if the program computes a bound of the part, or if a size is
        dynamic.
        """
        whole, part = op.operands[0], op.results[0]
        if op.name == "tensor.insert_slice":
            whole, part = op.operands[1], op.operands[0]
        shape, left = shape_of(whole), list(shape_of(part))
        if len(op.operands) > (2 if op.name == "tensor.insert_slice" else 1):
            return None
        if any(size < 0 for size in (*shape, *left)):
            return None
        starts, sizes, steps = (
            _integers(op, f"static_{name}") for name in ("offsets", "sizes", "strides")
        )
        kept: list[int] = []
        for dim, size in enumerate(sizes):
            rest = len(sizes) - dim
            if left and left[0] == size and (size != 1 or len(left) == rest):
                kept.append(dim)
                left.pop(0)
        if left:
            return None
        bounds = zip(starts, sizes, steps, shape, strict=True)
        full = [
            dim for dim, (a, n, by, m) in enumerate(bounds) if (a, n, by) == (0, m, 1)
        ]
        return ConstantPart(shape, sizes, tuple(kept), tuple(full))


def _integers(op: Operation, name: str) -> tuple[int, ...]:
    values = op.properties[name]
    assert isinstance(values, DenseArrayBase)
    return tuple(int(value) for value in values.get_values())


@sharding_rule("tensor.extract_slice", "tensor.insert_slice")
def slice_rule(op: Operation) -> Rule:
    """
    Returns the sharding rule of slices with constant bounds. A dimension is a factor if
    the slice has all elements along this dimension. Slices with other bounds are
    replicated.
    """
    found = ConstantPart.of(op)
    if found is None:
        return Rule.replicated(op)
    build = RuleBuilder(op)
    dims = tuple(
        build.factor(size) if dim in found.full else ()
        for dim, size in enumerate(found.shape)
    )
    part = tuple(dims[dim] for dim in found.kept)
    if op.name == "tensor.extract_slice":
        return build.rule([dims], [part], linear=[[0]], reductions=ANY)
    return build.rule([part, dims], [dims], linear=[[0, 1]], reductions=ANY)


@local_form("tensor.extract_slice", "tensor.insert_slice")
def local_slice(context: LocalContext) -> Sequence[Operation]:
    """
    Returns the ops that make the slice on one device, with the sizes of the device's
    part.
    """
    op, found = context.op, ConstantPart.of(context.op)
    new = context.same_op()
    if found is not None:
        whole = new.operands[op.name == "tensor.insert_slice"]
        own = shape_of(whole)
        sizes = [
            own[dim] if dim in found.full else size
            for dim, size in enumerate(found.sizes)
        ]
        new.properties["static_sizes"] = DenseArrayBase.from_list(i64, sizes)
    return [new]


@register_reference_implementations
@register_impls
class TensorFunctions(InterpreterFunctions):
    """The evaluation of `tensor` ops on arrays."""

    @impl(tensor.EmptyOp)
    def empty(
        self, interpreter: Interpreter, op: tensor.EmptyOp, args: PythonValues
    ) -> PythonValues:
        """Returns zeros, in place of the undefined elements of `tensor.empty`."""
        type_ = op.results[0].type
        assert isinstance(type_, TensorType)
        return (np.zeros(type_.get_shape(), dtype_of(type_)),)

    @impl(tensor.SplatOp)
    def splat(
        self, interpreter: Interpreter, op: tensor.SplatOp, args: PythonValues
    ) -> PythonValues:
        type_ = op.results[0].type
        assert isinstance(type_, TensorType)
        return (np.full(type_.get_shape(), args[0], dtype_of(type_)),)

    @impl(tensor.CastOp)
    def cast(
        self, interpreter: Interpreter, op: tensor.CastOp, args: PythonValues
    ) -> PythonValues:
        return (args[0],)

    @impl(tensor.ExpandShapeOp)
    def expand(
        self, interpreter: Interpreter, op: tensor.ExpandShapeOp, args: PythonValues
    ) -> PythonValues:
        return self._reshaped(op, args[0])

    @impl(tensor.CollapseShapeOp)
    def collapse(
        self, interpreter: Interpreter, op: tensor.CollapseShapeOp, args: PythonValues
    ) -> PythonValues:
        return self._reshaped(op, args[0])

    @impl(tensor.ConcatOp)
    def concat(
        self, interpreter: Interpreter, op: tensor.ConcatOp, args: PythonValues
    ) -> PythonValues:
        return (np.concatenate(args, axis=op.dim.value.data),)

    @impl(tensor.ExtractSliceOp)
    def extract_slice(
        self, interpreter: Interpreter, op: tensor.ExtractSliceOp, args: PythonValues
    ) -> PythonValues:
        type_ = op.result.type
        assert isinstance(type_, TensorType)
        part = args[0][_places(op, args[1:])]
        return (np.reshape(part, type_.get_shape()),)

    @impl(tensor.InsertSliceOp)
    def insert_slice(
        self, interpreter: Interpreter, op: tensor.InsertSliceOp, args: PythonValues
    ) -> PythonValues:
        part, whole, *bounds = args
        found, places = np.array(whole), _places(op, bounds)
        found[places] = np.reshape(part, found[places].shape)
        return (found,)

    def _reshaped(self, op: Operation, value: Any) -> PythonValues:
        type_ = op.results[0].type
        assert isinstance(type_, TensorType)
        return (np.reshape(value, type_.get_shape()),)


def _places(op: Operation, bounds: Sequence[Any]) -> tuple[slice, ...]:
    """
    Returns the index range along each dimension that a slice reads or replaces.
    `bounds` are the values of the bounds that are not constant: offsets, then sizes,
    then strides.
    """
    given = iter(bounds)
    starts, sizes, steps = (
        [
            int(next(given)) if value == DYNAMIC_INDEX else value
            for value in _integers(op, f"static_{name}")
        ]
        for name in ("offsets", "sizes", "strides")
    )
    return tuple(
        slice(start, start + (size - 1) * step + 1 if size else start, step)
        for start, size, step in zip(starts, sizes, steps, strict=True)
    )
