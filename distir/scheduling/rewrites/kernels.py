"""
Replaces groups of ops by users' kernels. The ops of a group become the reference of the
kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    DictionaryAttr,
    FloatAttr,
    ModuleOp,
    StringAttr,
    TensorType,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.constants import direct_constant, draws_random_numbers
from distir.dialects.dist_attributes import RECOMPUTE, SCOPE
from distir.dialects.kernel import (
    KernelCallOp,
    KernelDefOp,
    KernelResultOp,
    kernels,
)
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder
from distir.program import describe, made_with
from distir.scheduling.rewrites.outline import content_of
from distir.scheduling.rewrites.replacement import put
from distir.scheduling.rewrites.separate import OpGroup
from distir.sharding.kernel_parts import check_rule, flops_of
from distir.sharding.kernel_propagation import propagated_rule
from distir.sharding.kernel_rule import evaluated, parse_rule


def result_of(group: OpGroup) -> SSAValue:
    """Returns the value that a group computes."""
    return group.ops[-1].results[0]


def check_groups(groups: Sequence[OpGroup], where: str) -> None:
    """
    Checks groups before their replacement. Raises DistIRError if two groups have ops in
    common, or if ops outside a group use another value of the group than its result.
    `where` is the first part of the error message.
    """
    taken: dict[tuple[object, ...], OpGroup] = {}
    for group in groups:
        inside = set(group.ops)
        for op in group.ops:
            other = taken.setdefault((group.path, op), group)
            if other is not group:
                raise DistIRError(
                    f"{where}: two of the groups overlap: {describe(op)} is in that which "
                    f"ends with {describe(group.ops[-1])} and in that which ends with "
                    f"{describe(other.ops[-1])}; find a larger pattern, or look in fewer "
                    f"modules"
                )
        for op in group.ops[:-1]:
            for result in op.results:
                _check_inside(result, inside, where, group)


def _check_inside(
    value: SSAValue, inside: set[Operation], where: str, group: OpGroup
) -> None:
    for use in value.uses:
        if use.operation not in inside:
            raise DistIRError(
                f"{where}: {describe(use.operation)} uses what "
                f"{describe(value.owner) if isinstance(value.owner, Operation) else value} "
                f"computes, a value inside of the group that ends with "
                f"{describe(group.ops[-1])}; find a pattern that ends before it"
            )


def with_noise_outside(group: OpGroup) -> OpGroup:
    """
    Replaces every Dropout in training mode in a group by a product with a noise value,
    and returns the changed group. The noise is the dropout of ones: 0 for dropped
    elements, else 1 / (1 - ratio).

    The ops that draw the noise are placed before the group. The noise becomes an
    additional input of the group, after the inputs of its pattern. The dropped elements
    stay the same. In evaluation mode the noise is all ones. The backward pass draws the
    noise again instead of keeping it.
    """
    ops = list[Operation]()
    inputs = list(group.inputs)
    for op in group.ops:
        is_dropout = isinstance(op, OnnxOp) and op.name == "onnx.Dropout"
        if not is_dropout or not draws_random_numbers(op) or len(op.results) > 1:
            ops.append(op)
            continue
        assert isinstance(op, OnnxOp)
        noise, product = _separated(op)
        inputs.append(noise)
        ops.append(product)
    return replace(group, ops=tuple(ops), inputs=tuple(inputs))


def _separated(op: OnnxOp) -> tuple[SSAValue, Operation]:
    """Returns the noise of a Dropout, and the product that replaces the Dropout."""
    point = InsertPoint.before(op)
    build = GradientBuilder(
        lambda new: Rewriter.insert_op(new, point), op.attributes.get(SCOPE)
    )
    x, *settings = op.operands
    shape = build.constant(np.array(shape_of(x.type), np.int64))
    ones = build.onnx("Expand", build.scalar(1.0, x), shape)
    noise = build.onnx("Dropout", ones, *settings, **_attributes(op))
    noise.name_hint = "noise"
    for value in (ones, noise):
        assert isinstance(value.owner, Operation)
        value.owner.attributes[RECOMPUTE] = RECOMPUTE.attr("full")
    result = build.onnx("Mul", x, noise)
    result.name_hint = op.results[0].name_hint
    Rewriter.replace_op(op, [], [result])
    assert isinstance(result.owner, Operation)
    return noise, result.owner


def _attributes(op: OnnxOp) -> dict[str, Any]:
    """Returns the attributes of a Dropout that are set, by name."""
    found = {name: op.attribute(name) for name in op.SCHEMA.attributes}
    return {name: value for name, value in found.items() if value is not None}


class KernelMaker:
    """
    Replaces groups by a kernel. Equal groups share one `kernel.def`. `given` are the
    properties of the kernel from the schedule, by the property names of
    `schedule.kernel`.
    """

    def __init__(self, module: ModuleOp, given: Mapping[str, Attribute]):
        self._module = module
        self._given = given
        self._made: dict[object, KernelDefOp] = {}
        self._moved: dict[SSAValue, SSAValue] = {}

    def replace(self, group: OpGroup) -> None:
        """
        Replaces a group by a call of the kernel. For dropouts in training mode, the
        call gets their noise as additional arguments. Raises DistIRError if the group
        cannot be the reference of a kernel or the kernel's rule is wrong for it.
        """
        group = with_noise_outside(group)
        # One group may use what another computed.
        inputs = [self._moved.get(value, value) for value in group.inputs]
        if len(set(inputs)) < len(inputs):
            raise DistIRError(
                f"two arguments of the pattern are the same value for the group that ends "
                f"with {describe(group.ops[-1])}; find a pattern that has it as one argument"
            )
        reference = _reference(group.ops, inputs)
        key = content_of(reference)
        if key not in self._made:
            self._made[key] = self._kernel(reference)
        call, result = KernelCallOp.of(self._made[key], inputs), result_of(group)
        put(group.ops, result, call)
        self._moved[result] = call.results[0]

    def _kernel(self, reference: Block) -> KernelDefOp:
        text = self._text("rule")
        rule = parse_rule(text) if text else propagated_rule(reference)
        shapes = [shape_of(arg.type) for arg in reference.args]
        end = reference.last_op
        assert end is not None
        sizes = rule.sizes(shapes, [shape_of(value.type) for value in end.operands])
        for name in ("flops", "workspace"):
            if self._text(name):
                evaluated(self._text(name), sizes)
        tolerance, options = self._given.get("tolerance"), self._given.get("options")
        made = KernelDefOp.of(
            self._name(),
            self._text("implementation"),
            str(rule),
            Region(reference),
            gradient=self._text("gradient") or "reference",
            options=options if isinstance(options, DictionaryAttr) else None,
            tolerance=tolerance.value.data
            if isinstance(tolerance, FloatAttr)
            else None,
            workspace=self._text("workspace"),
        )
        check_rule(made)
        flops = self._text("flops") or flops_of(reference, rule)
        if flops:
            made.properties["flops"] = StringAttr(flops)
        self._module.body.block.add_op(made)
        made.verify_()
        return made

    def _name(self) -> str:
        wanted, known = self._text("symbol"), kernels(self._module)
        names = (f"{wanted}_{n}" if n else wanted for n in count())
        return next(name for name in names if name not in known)

    def _text(self, name: str) -> str:
        attribute = self._given.get(name)
        return attribute.data if isinstance(attribute, StringAttr) else ""


def _reference(ops: Sequence[Operation], inputs: Sequence[SSAValue]) -> Block:
    """
    Returns the ops of a group as a block. The block's arguments are `inputs`, the
    arguments of the pattern; the last op computes the result. Raises DistIRError if an
    op draws random numbers, or reads another value than constants and `inputs`.
    """
    block = Block(arg_types=[value.type for value in inputs])
    values: dict[SSAValue, SSAValue] = {}
    for value, argument in zip(inputs, block.args, strict=True):
        values.setdefault(value, argument)
        argument.name_hint = value.name_hint
        if (
            not isinstance(value.type, TensorType)
            or min(shape_of(value.type), default=0) < 0
        ):
            raise DistIRError(f"an input has type {value.type}, not that of a tensor")
    for op in ops:
        if draws_random_numbers(op) or (
            op.name == "onnx.Dropout" and len(op.operands) > 1
        ):
            raise DistIRError(
                f"{describe(op)} draws random numbers, which a kernel cannot be compared "
                f"with; find a pattern without it"
            )
        for value in op.operands:
            if value not in values:
                values[value] = _constant(value, block, op)
        copy = made_with(op, [values[v] for v in op.operands], op.result_types)
        block.add_op(copy)
        for before, after in zip(op.results, copy.results, strict=True):
            after.name_hint = before.name_hint
            values[before] = after
    block.add_op(KernelResultOp.create(operands=[values[ops[-1].results[0]]]))
    return block


def _constant(value: SSAValue, block: Block, op: Operation) -> SSAValue:
    """
    Adds a copy of the constant `value` to the reference `block` and returns the copy.
    Raises DistIRError if `value` is not a constant.
    """
    if direct_constant(value) is None:
        raise DistIRError(
            f"{describe(op)} reads a value that the pattern has no argument for; find a "
            f"pattern that names it, so that the kernel is given it"
        )
    assert isinstance(value.owner, Operation)
    copy = value.owner.clone()
    block.add_op(copy)
    return copy.results[0]
