"""
Separates batch and heads if a model merges them for matrix products (BLOOM). Attention
then has the dimensions [batch, heads, length, features] and can be recognised.
"""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from distir.dialects.dist import layout_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import known_shape
from distir.transforms.patterns.match import (
    made_before,
    number,
    producer,
    used_once,
)


def split_heads(op: OnnxOp) -> bool:
    """
    Computes products on separate batch and heads if `op` is the Reshape that separates
    batch and heads, from [batch * heads, m, n] to [batch, heads, m, n]. The operand of
    `op` must be computed by products, sums and scalings from values with merged batch
    and heads. The new ops do the same with the values before the merge. Returns whether
    this was possible.
    """
    if op.name != "onnx.Reshape" or layout_of(op.results[0]) is not None:
        return False
    before, after = known_shape(op.operands[0]), known_shape(op.results[0])
    if before is None or after is None or len(before) != 3 or len(after) != 4:
        return False
    if after[2:] != before[1:] or not used_once(op.operands[0]):
        return False
    found = _apart(op.operands[0], after[:2], op)
    if found is None:
        return False
    op.results[0].replace_all_uses_with(found)
    return True


def _apart(value: SSAValue, heads: tuple[int, ...], end: OnnxOp) -> SSAValue | None:
    """
    Returns `value`, of shape [batch * heads, m, n], as [batch, heads, m, n]. The result
    is computed before the op `end`, from the values before batch and heads were merged.
    `heads` are the sizes of batch and heads. Returns None if there are no values before
    the merge.
    """
    shape = known_shape(value)
    if shape is None or len(shape) != 3:
        return None
    whole = (*heads, *shape[1:])
    merge = producer(value, "Reshape")
    if merge is not None:
        source = merge.operands[0]
        return source if known_shape(source) == whole else None
    op = producer(value, "MatMul", "Transpose", "Add", "Mul", "Div")
    if op is None or not used_once(value):
        return None
    if op.name == "onnx.Transpose":
        source = _apart(op.operands[0], heads, end)
        if source is None or list(op.attribute("perm") or ()) != [0, 2, 1]:
            return None
        return made_before(end, "Transpose", [source], whole, perm=[0, 1, 3, 2])
    sides = [_apart(operand, heads, end) for operand in op.operands]
    if op.name == "onnx.MatMul":
        if None in sides:
            return None
    elif all(side is None for side in sides):
        return None
    else:
        sides = [
            _beside(operand, heads, end) if side is None else side
            for side, operand in zip(sides, op.operands, strict=True)
        ]
    known = [side for side in sides if side is not None]
    if len(known) < 2:
        return None
    return made_before(end, op.name.removeprefix("onnx."), known, whole)


def _beside(value: SSAValue, heads: tuple[int, ...], end: OnnxOp) -> SSAValue | None:
    """
    Returns `value` in a shape that can be combined with values with separate batch and
    heads. A number, or a value without batch and heads, is returned unchanged; any
    other value is reshaped before the op `end`. Returns None if the shape of `value` is
    unknown or has more than three dimensions.
    """
    shape = known_shape(value)
    if number(value) is not None:
        return value
    if shape is None or len(shape) > 3:
        return None
    if len(shape) < 3 or shape[0] == 1:
        return value
    target = (*heads, *shape[1:])
    sizes = np.array(target, np.int64)
    to = made_before(end, "Constant", [], [4], i64, value=sizes)
    return made_before(end, "Reshape", [value, to], target)
