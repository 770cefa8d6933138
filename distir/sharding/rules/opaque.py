"""
Sharding rules of opaque modules and of their gradients, and their local forms: the ops
of one device.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, StringAttr, i64
from xdsl.ir import Operation

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.opaque import OpaqueBase, OpaqueGradOp
from distir.errors import DistIRError
from distir.program import describe
from distir.sharding.kernel_rule import KernelRule
from distir.sharding.local import LocalContext, local_form
from distir.sharding.opaque_rule import OpaqueRule, parse_opaque_rule
from distir.sharding.rule import Rule, sharding_rule
from distir.sharding.rules.local_builder import LocalBuilder


def declared_rule(op: OpaqueBase) -> OpaqueRule:
    """
    Returns the sharding rule that an opaque module, or its gradient, declares. The
    counter and coordinates of random numbers are replicated. Raises DistIRError if the
    rule is malformed, or if the numbers of operands or results differ.
    """
    rule = parse_opaque_rule(op.rule.data)
    counts = len(op.operands), len(op.results)
    drawn = (op.counter is not None) + len(op.coordinates)
    found = len(rule.operands) + drawn, len(rule.results)
    if found != counts:
        raise DistIRError(
            f"rule {rule} is for {len(rule.operands)} operands and {found[1]} results, not "
            f"for {counts[0] - drawn} and {counts[1]}"
        )
    if not drawn:
        return rule
    factors = rule.factors
    scalars = tuple(() for _ in range(drawn))
    # The counter and the coordinates come last.
    return OpaqueRule(
        KernelRule((*factors.operands, *scalars), factors.results, factors.kept),
        (*rule.operands, *scalars),
        rule.results,
    )


@sharding_rule("train.opaque", "train.opaque_grad")
def opaque(op: Operation) -> Rule:
    """
    Returns the declared rule of an opaque module, or of its gradient. Raises
    DistIRError if the rule does not fit the operands.
    """
    assert isinstance(op, OpaqueBase)
    # The split of factors is only computed for ops with FLOPs, and the workspace depends
    # on it.
    memory_bound = "" if op.workspace is None else "1"
    try:
        return declared_rule(op).rule(
            [shape_of(value) for value in op.operands],
            [shape_of(value) for value in op.results],
            memory_bound if op.flops is None else op.flops.data,
            is_gradient=isinstance(op, OpaqueGradOp),
        )
    except DistIRError as error:
        raise DistIRError(f"{describe(op)} of {op.symbol!r}: {error}") from error


@local_form("train.opaque", "train.opaque_grad")
def opaque_of_part(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for an opaque module. The op names the axes over which the
    module communicates. If the module draws random numbers, the op also has the
    device's positions along the axes that split it, so that the parts draw different
    numbers.
    """
    op, builder = context.op, LocalBuilder(context)
    assert isinstance(op, OpaqueBase)
    own = [o.axis for o in context.rule.axes_on(context.mesh)]
    operands = list(context.operands)
    places = len(op.coordinates)
    if op.counter is not None:
        split = [axis for f in context.assignment for axis in context.axes_of(f)]
        for axis, _ in context.mesh.axes:
            if axis in split or axis in own:
                operands.append(builder.coordinate([axis]))
                places += 1
    local = context.same_op(operands)
    assert isinstance(local, OpaqueBase)
    sizes = local.properties["operandSegmentSizes"]
    assert isinstance(sizes, DenseArrayBase)
    *before, _ = sizes.get_values()
    local.properties["operandSegmentSizes"] = DenseArrayBase.from_list(
        sizes.elt_type, [*map(int, before), places]
    )
    if own:
        known = dict(zip(op.axis_names, op.axis_sizes, strict=True))
        known |= {axis: context.mesh.size(axis) for axis in own}
        local.properties["axes"] = ArrayAttr([StringAttr(axis) for axis in known])
        local.properties["sizes"] = DenseArrayBase.from_list(i64, list(known.values()))
    return [*builder.ops, local]
