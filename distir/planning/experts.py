"""Expert parallelism: experts that are dealt out over a mesh axis, and tokens sent to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import SCOPE, ConstrainOp, Layout, Shard
from distir.dialects.tensors import rank_of, shape_of
from distir.dialects.train_ops.experts import ExpertPlacesOp
from distir.errors import DistIRError
from distir.planning.annotations import axis_mesh
from distir.planning.requests import request
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    parameters_of_states,
    reachable_functions,
)
from distir.sharding.mesh import Mesh
from distir.sharding.rule import Rule, rule_for
from distir.transforms.expert_shards import deal_out_experts


def expert_degrees(modules: Sequence[ModuleOp], devices: int) -> tuple[int, ...]:
    """
    Returns the degrees of expert parallelism on so many devices that programs allow: 1, and
    for mixtures of experts all that deal experts and devices out evenly.
    """
    sizes = {
        shape_of(argument.type)[0]
        for module in modules
        for argument in _Experts(module).matrices
    }
    # Grouped products of one shard have no dimension of experts yet.
    sizes |= {
        op.experts.value.data
        for module in modules
        for op in module.walk()
        if isinstance(op, ExpertPlacesOp)
    }
    if not sizes:
        return (1,)
    most = gcd(devices, *sizes)
    return tuple(e for e in range(1, most + 1) if most % e == 0)


def split_experts(module: ModuleOp, axis: str) -> None:
    """
    Requests that the experts of a sequential program are dealt out over a mesh axis, as the
    pass `expert-parallel` says. Raises DistIRError.
    """
    mesh = axis_mesh(module, axis)
    deal_out_experts(module, mesh.size(axis))
    found = _Experts(module)
    if not found.parameters:
        raise DistIRError(
            "expert-parallel: the program has no mixture of experts: no product has a "
            "parameter with one matrix for each of several experts; leave out -e"
        )
    function = entry_function(module)
    states = parameters_of_states(function)
    names, types = argument_names(function), function.function_type.inputs.data
    for i in [
        *found.parameters,
        *(s for s, p in states.items() if p in found.parameters),
    ]:
        shape = shape_of(types[i])
        owner = states.get(i, i)
        if i != owner and shape != shape_of(types[owner]):
            continue
        if shape[0] % mesh.size(axis):
            raise DistIRError(
                f"expert-parallel: the {shape[0]} experts of {names[i]!r} cannot be dealt out "
                f"evenly over axis {axis!r} of size {mesh.size(axis)}; choose an -{axis} that "
                f"divides {shape[0]}"
            )
        asked = Layout(mesh.name).with_dim(0, (Shard(axis),), len(shape))
        request(function, i, asked, [axis], "expert parallelism")
    for op, matrices, factor in found.products:
        _send_tokens(op, matrices, factor, mesh, axis)


def _send_tokens(
    op: Operation, matrices: int, factor: int, mesh: Mesh, axis: str
) -> None:
    """
    Requests that what a product takes beside its matrices (the operand of that index) is
    dealt out like the experts: tokens come to experts, and no expert comes to tokens.
    """
    rule = rule_for(op)
    for i, value in enumerate(op.operands):
        if i == matrices:
            continue
        dims = rule.operands[i]
        dim = next(d for d, factors in enumerate(dims) if factor in factors)
        layout = Layout(mesh.name).with_dim(dim, (Shard(axis),), len(dims))
        constrain = ConstrainOp(value, layout, [axis])
        if SCOPE in op.attributes:
            constrain.attributes[SCOPE] = op.attributes[SCOPE]
        Rewriter.insert_op(constrain, InsertPoint.before(op))
        op.operands[i] = constrain.result


class _Experts:
    """
    The products of a program that have a matrix for each expert.

    - `parameters`: the arguments of the entry, by index, that hold these matrices;
    - `products`: the products, each with the index of the operand that holds the matrices, and
      with the factor of its rule that numbers the experts (or shards of them). It is in a dimension of everything that they take and give, so that a
      product can be computed for some experts alone.
    """

    def __init__(self, module: ModuleOp):
        self.entry = entry_function(module)
        self.calls: dict[str, list[CallOp]] = {}
        functions = reachable_functions(module)
        for function in functions:
            for op in function.body.block.ops:
                if isinstance(op, CallOp):
                    self.calls.setdefault(op.callee.string_value(), []).append(op)
        self.roles = argument_roles(self.entry)
        self.parameters: dict[int, None] = {}
        self.products: list[tuple[Operation, int, int]] = []
        for function in functions:
            for op in function.body.block.ops:
                self._add(op)

    @property
    def matrices(self) -> list[SSAValue]:
        """The arguments that hold the experts' matrices."""
        return [self.entry.body.block.args[i] for i in self.parameters]

    def _add(self, op: Operation) -> None:
        rule = rule_for(op)
        if not rule.flops:
            return
        for i, (value, dims) in enumerate(zip(op.operands, rule.operands, strict=True)):
            if len(dims) < 3 or not dims[0] or not _is_everywhere(dims[0][0], rule):
                continue
            arguments = list(self._arguments(value))
            if arguments and all(self.roles[a] == "parameter" for a in arguments):
                self.parameters |= dict.fromkeys(arguments)
                self.products.append((op, i, dims[0][0]))
                return

    def _arguments(self, value: SSAValue) -> Iterator[int]:
        """
        Yields the arguments of the entry that a value is made of by ops that keep its first
        dimension.
        """
        if isinstance(value, BlockArgument):
            function = value.owner.parent_op()
            assert isinstance(function, FuncOp)
            if function is self.entry:
                yield value.index
            for call in self.calls.get(function.sym_name.data, []):
                yield from self._arguments(call.operands[value.index])
            return
        op = value.owner
        assert isinstance(op, Operation)
        source = op.operands[0] if op.operands else None
        if source is None or isinstance(op, CallOp) or rank_of(source.type) < 2:
            return
        rule = rule_for(op)
        first = rule.results[0][0] if rule.results and rule.results[0] else ()
        if first and not rule.flops and rule.operands[0][0] == first:
            yield from self._arguments(source)


def _is_everywhere(factor: int, rule: Rule) -> bool:
    """Whether a factor is parallel, and in a dimension of all operands and results."""
    return rule.factors[factor].kind == "parallel" and all(
        any(factor in dim for dim in dims) for dims in (*rule.operands, *rule.results)
    )
