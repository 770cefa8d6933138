"""
Recognises the attention scores that a softmax takes. Scores are scaled products of
queries and keys, possibly with a soft cap and masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import tensor_type
from distir.dialects.tensors import known_shape
from distir.transforms.patterns.match import (
    element,
    factors,
    number,
    producer,
    swaps_last_two,
    uncast,
    used_once,
)

_MOST_MASKS = 4
"""The largest number of masks that are recognised in scores."""


@dataclass(frozen=True)
class Fill:
    """
    A mask that replaces a score by the number `lowest` where the element of `condition`
    equals `hidden`.
    """

    condition: SSAValue
    hidden: bool
    lowest: SSAValue


@dataclass(frozen=True)
class Scaled:
    """A mask that is multiplied by `factor` before it is added to scores."""

    value: SSAValue
    factor: float


Mask = SSAValue | Fill | Scaled
"""
A mask of scores: a value that is added, a `Scaled` value that is added, or a `Fill`.
"""


@dataclass(frozen=True)
class Scores:
    """
    Attention scores: `cap(scale * query key') + masks`. The soft cap is `c tanh(s /
    c)`; a `cap` of None means no soft cap.
    """

    query: SSAValue
    key: SSAValue
    scale: float
    cap: float | None = None
    masks: Sequence[Mask] = ()


def readings(value: SSAValue, depth: int = _MOST_MASKS) -> Iterator[Scores]:
    """
    Yields all interpretations of `value` as attention scores, with at most `depth`
    masks. Intermediate values must have no other uses. Casts of scores to a wider type
    are ignored.
    """
    if not used_once(value):
        return
    value = uncast(value, widens=True)
    add, where = producer(value, "Add"), producer(value, "Where")
    if add is not None and depth:
        for inner, mask in (add.operands, reversed(add.operands)):
            for found in readings(inner, depth - 1):
                yield replace(found, masks=[mask, *found.masks])
    elif where is not None and depth:
        condition, *sides = where.operands
        for inner, lowest, hidden in ((*sides, False), (*reversed(sides), True)):
            if number(lowest) is not None:
                fill = Fill(condition, hidden, lowest)
                for found in readings(inner, depth - 1):
                    yield replace(found, masks=[fill, *found.masks])
    else:
        found = _capped(value)
        if found is not None:
            yield found
        elif depth:
            yield from _scaled_sums(value, depth)


def _scaled_sums(value: SSAValue, depth: int) -> Iterator[Scores]:
    """
    Yields interpretations of `value` as a constant times the sum of scores and a mask.
    Some models with a mask of distances (ALiBi) write scores in this form.
    """
    scale, values = factors(value)
    if len(values) != 1 or producer(values[0], "Add") is None:
        return
    for found in readings(values[0], depth - 1):
        masks = [_times(mask, scale) for mask in found.masks]
        if found.cap is None and None not in masks:
            known = [mask for mask in masks if mask is not None]
            yield replace(found, scale=found.scale * scale, masks=known)


def _times(mask: Mask, scale: float) -> Mask | None:
    """Returns `mask` multiplied by `scale`, or None if the mask is a `Fill`."""
    if isinstance(mask, Fill):
        return None
    if isinstance(mask, Scaled):
        return Scaled(mask.value, mask.factor * scale)
    return Scaled(mask, scale)


def _capped(value: SSAValue) -> Scores | None:
    """
    Returns the scores without masks, possibly with a soft cap, whose last op computes
    `value`. Returns None if `value` does not have this form.
    """
    cap, values = factors(value)
    tanh = producer(values[0], "Tanh") if len(values) == 1 else None
    if tanh is None or not used_once(values[0]):
        return _scaled_product(value)
    found = _scaled_product(tanh.operands[0])
    if found is None or not cap > 0:
        return None
    return replace(found, scale=found.scale * cap, cap=cap)


def _scaled_product(raw: SSAValue) -> Scores | None:
    """
    Returns the scores `scale Q K^T` whose last op computes `raw`, or None if `raw` does
    not have this form. Constant factors of Q and K become part of the scale.
    """
    scale, values = factors(raw)
    if len(values) != 1:
        return None
    raw = uncast(values[0], widens=True)
    product = producer(raw, "MatMul")
    if product is None or not used_once(raw):
        return None
    a, queries = factors(product.operands[0])
    b, keys = factors(product.operands[1])
    if len(queries) != 1 or len(keys) != 1:
        return None
    key = _transposed(keys[0])
    return None if key is None else Scores(queries[0], key, scale * a * b)


def _transposed(value: SSAValue) -> SSAValue | None:
    """
    Returns K if `value` is K^T, else None. The Transpose may also merge batch and
    heads.
    """
    transpose = producer(value, "Transpose")
    if transpose is not None:
        if swaps_last_two(transpose):
            return transpose.operands[0]
        return _permuted(transpose)
    outer = producer(value, "Reshape")
    transpose = None if outer is None else producer(outer.operands[0], "Transpose")
    inner = None if transpose is None else producer(transpose.operands[0], "Reshape")
    if transpose is None or inner is None or not swaps_last_two(transpose):
        return None
    before, after = known_shape(inner.operands[0]), known_shape(value)
    merged = known_shape(inner.results[0])
    if before is None or after is None or merged is None or len(merged) != 3:
        return None
    if merged[1:] != before[-2:] or after != (*before[:-2], before[-1], before[-2]):
        return None
    return inner.operands[0]


def _permuted(transpose: OnnxOp) -> SSAValue | None:
    """
    Inserts a Transpose that computes K, and returns its result. The op `transpose`
    computes K^T directly from [batch, sequence, heads, features]; the new Transpose
    also swaps the last two dimensions. Returns None if the shape or the order of
    dimensions is unknown.
    """
    order = list(transpose.attribute("perm") or ())
    shape = known_shape(transpose.results[0])
    if len(order) != 4 or shape is None:
        return None
    swapped = [order[0], order[1], order[3], order[2]]
    element_type = element(transpose.results[0])
    assert element_type is not None
    new = operator("Transpose").build_op(
        [transpose.operands[0]],
        [tensor_type([shape[0], shape[1], shape[3], shape[2]], element_type)],
        {"perm": swapped},
        dict(transpose.attributes),
    )
    block = transpose.parent_block()
    assert block is not None
    block.insert_op_before(new, transpose)
    return new.results[0]
