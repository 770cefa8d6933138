"""
Takes the random numbers of dropout out of groups of ops, so that a kernel that computes
what a group does is given them as an argument and draws none itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.constants import draws_random_numbers
from distir.dialects.dist_attributes import RECOMPUTE, SCOPE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.gradients.rule import GradientBuilder
from distir.scheduling.rewrites.separate import OpGroup


def with_noise_outside(group: OpGroup) -> OpGroup:
    """
    Replaces every Dropout in training mode in a group by a product with *noise*: what the
    same Dropout makes of ones, 0 or 1 / (1 - ratio). The ops that draw it are in front of
    the group, which gets the noise as further inputs, after those of its pattern. Elements
    are dropped as before, and no element is in evaluation, where a Dropout of ones gives
    ones. A backward draws the noise again instead of keeping it.
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
    """Returns the noise of a Dropout and the product that replaces the Dropout."""
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
    """Returns the attributes that a Dropout is given."""
    found = {name: op.attribute(name) for name in op.SCHEMA.attributes}
    return {name: value for name, value in found.items() if value is not None}
