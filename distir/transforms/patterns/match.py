"""
Helpers for the recognition of patterns: they examine values and the ops that compute
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import AnyFloat, BFloat16Type, Float16Type, TensorType
from xdsl.ir import Attribute, SSAValue

from distir.dialects.constants import direct_constant
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import tensor_type
from distir.dialects.tensors import known_shape


def array_of(value: SSAValue | None) -> npt.NDArray[Any] | None:
    """Returns the array of an `onnx.Constant`'s result, or None for any other value."""
    known = None if value is None else direct_constant(value)
    return None if known is None else np.asarray(known)


def replace_by(
    op: OnnxOp, name: str, operands: Sequence[SSAValue], **attributes: object
) -> None:
    """Replaces `op`, which has one result, by the ONNX operator `name`."""
    result = op.results[0]
    new = operator(name).build_op(
        list(operands), [result.type], attributes, dict(op.attributes)
    )
    new.results[0].name_hint = result.name_hint
    block = op.parent_block()
    assert block is not None
    block.insert_op_before(new, op)
    result.replace_all_uses_with(new.results[0])


def made_before(
    op: OnnxOp,
    name: str,
    operands: Sequence[SSAValue],
    shape: Sequence[int],
    kind: Attribute | None = None,
    **attributes: object,
) -> SSAValue:
    """
    Inserts the ONNX operator `name` before `op` and returns its result, of the shape
    `shape` and the element type `kind`. If `kind` is None, the result has the element
    type of the first operand.
    """
    kind = element(operands[0]) if kind is None else kind
    assert kind is not None
    new = operator(name).build_op(
        list(operands), [tensor_type(shape, kind)], attributes, dict(op.attributes)
    )
    block = op.parent_block()
    assert block is not None
    block.insert_op_before(new, op)
    return new.results[0]


def uncast(value: SSAValue, *, widens: bool) -> SSAValue:
    """
    Returns the operand of the cast that computes `value`, if the cast is between
    floating-point types and `value` has a single use. The cast must be to a wider type
    with `widens`, else to a narrower type. Returns `value` itself in all other cases.
    """
    cast = producer(value, "Cast")
    if cast is None or not used_once(value):
        return value
    before, after = element(cast.operands[0]), element(value)
    if not isinstance(before, AnyFloat) or not isinstance(after, AnyFloat):
        return value
    is_wider = after.bitwidth > before.bitwidth
    return cast.operands[0] if is_wider == widens else value


def producer(value: SSAValue | None, *names: str) -> OnnxOp | None:
    """
    Returns the op that computes `value` if it is one of the ONNX operators `names`,
    else None.
    """
    if value is None or not isinstance(value.owner, OnnxOp):
        return None
    return value.owner if value.owner.name.removeprefix("onnx.") in names else None


def used_once(value: SSAValue) -> bool:
    """Whether a value has exactly one use."""
    return len(list(value.uses)) == 1


def element(value: SSAValue) -> Attribute | None:
    """Returns the element type of a tensor, or None for any other value."""
    return value.type.element_type if isinstance(value.type, TensorType) else None


def number(value: SSAValue | None) -> float | None:
    """
    Returns the number in a floating-point constant with one element. Returns None for
    any other value.
    """
    known = array_of(value)
    if known is None or known.size != 1 or known.dtype.kind not in "fV":
        return None
    return float(known.reshape(-1)[0])


def close(value: float, target: float, like: SSAValue) -> bool:
    """
    Whether `value` equals `target` up to the precision of the element type of `like`.
    """
    half = isinstance(element(like), Float16Type | BFloat16Type)
    return abs(value - target) <= (2e-3 if half else 1e-6) * abs(target)


def factors(value: SSAValue) -> tuple[float, list[SSAValue]]:
    """
    Returns a constant and a list of values whose product is `value`. Mul, Div and Neg
    ops are followed if their result has a single use.
    """
    known = number(value)
    if known is not None:
        return known, []
    op = producer(value, "Mul", "Div", "Neg")
    if op is None or not used_once(value):
        return 1.0, [value]
    if op.name == "onnx.Neg":
        constant, rest = factors(op.operands[0])
        return -constant, rest
    left, right = op.operands
    if op.name == "onnx.Div":
        divisor = number(right)
        if not divisor:
            return 1.0, [value]
        constant, rest = factors(left)
        return constant / divisor, rest
    (a, left_values), (b, right_values) = factors(left), factors(right)
    return a * b, [*left_values, *right_values]


def product(op: OnnxOp) -> tuple[float, list[SSAValue]]:
    """
    Returns a constant and a list of values whose product is the result of a Mul or Div.
    The result of `op` may have any number of uses.
    """
    if op.name == "onnx.Div":
        divisor = number(op.operands[1])
        if not divisor:
            return 1.0, [op.results[0]]
        constant, rest = factors(op.operands[0])
        return constant / divisor, rest
    (a, left), (b, right) = factors(op.operands[0]), factors(op.operands[1])
    return a * b, [*left, *right]


def plus_constant(value: SSAValue) -> tuple[SSAValue, float] | None:
    """
    Returns x and c if `value` is the sum x + c of a value and a constant number, else
    None.
    """
    op = producer(value, "Add")
    if op is None:
        return None
    for i in (0, 1):
        known = number(op.operands[1 - i])
        if known is not None:
            return op.operands[i], known
    return None


def swaps_last_two(op: OnnxOp) -> bool:
    """
    Whether a Transpose swaps the last two dimensions and keeps all other dimensions in
    place.
    """
    shape = known_shape(op.operands[0])
    if shape is None:
        return False
    rank = len(shape)
    order = op.attribute("perm") or list(reversed(range(rank)))
    return list(order) == [*range(rank - 2), rank - 1, rank - 2]


def is_finite_constant(value: SSAValue) -> bool:
    """Whether `value` is a constant without infinities and without NaN."""
    known = array_of(value)
    return known is not None and bool(np.isfinite(known.astype(np.float64)).all())
