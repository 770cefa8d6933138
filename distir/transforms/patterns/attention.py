"""
Scaled dot-product attention, written out in products and a softmax, becomes `onnx.Attention`.

What is recognised: `softmax(scale Q K^T + mask) V` over [batch, heads, length, features], with
factors of queries and keys as part of the scale, keys and values repeated for groups of query
heads, and a mask of known zeros and lowest numbers that hides what is behind each query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from xdsl.ir import SSAValue

from distir.dialects.dist import layout_of
from distir.dialects.onnx import OnnxOp, operator
from distir.dialects.onnx_values import tensor_type
from distir.transforms.patterns.masks import (
    is_finite,
    is_learned,
    is_triangle,
    known_array,
    only_source,
)
from distir.transforms.patterns.match import (
    array_of,
    element,
    factors,
    number,
    producer,
    replace_by,
    shape_of,
    swaps_last_two,
    used_once,
)


class AttentionRaiser:
    """
    Puts `onnx.Attention` in the place of attention that is written out in a program without
    layouts: a sequential one, or that of one rank.
    """

    def __init__(self) -> None:
        self._masks: dict[SSAValue, bool] = {}
        self._known: dict[SSAValue, npt.NDArray[Any] | None] = {}

    def replace(self, op: OnnxOp) -> bool:
        """
        Whether `op`, the product with the values, is the end of attention; then it is
        replaced.

        `onnx.Attention` gives 0 for a query whose mask is minus infinity everywhere, where
        the written-out form gives NaN. So a mask must be finite as far as its ops tell,
        unless the program itself turns NaN weights into 0. A mask that a parameter goes into
        stays written out, where its gradient costs less.
        """
        if op.name != "onnx.MatMul" or layout_of(op.results[0]) is not None:
            return False
        weights, value = op.operands
        if not used_once(weights) and not _is_guard(weights):
            return False
        guarded = _unguarded(weights)
        softmax = producer(weights if guarded is None else guarded, "Softmax")
        if softmax is None:
            return False
        scores = softmax.operands[0]
        shape = shape_of(scores)
        if shape is None or len(shape) != 4 or softmax.attribute("axis") % 4 != 3:
            return False
        if not used_once(scores):
            return False
        for raw, mask in _masked(scores):
            found = _scaled_product(raw)
            if found is None:
                continue
            query, key, scale = found
            if mask is not None and not self._takes(mask, guarded is not None):
                continue
            causal = mask is not None and self._is_causal(mask, shape)
            if not causal and not _fits_mask(mask, query, shape):
                continue
            key, value = _shared_heads(key), _shared_heads(value)
            if not _fits(query, key, value, shape):
                continue
            operands = [query, key, value]
            if mask is not None and not causal:
                operands.append(mask)
            options = {"is_causal": 1} if causal else {}
            replace_by(op, "Attention", operands, scale=scale, **options)
            return True
        return False

    def _takes(self, mask: SSAValue, is_guarded: bool) -> bool:
        return (is_guarded or is_finite(mask)) and not is_learned(mask)

    def _is_causal(self, mask: SSAValue, scores: Sequence[int]) -> bool:
        """Whether a mask is known to hide the keys behind each query, and nothing else."""
        source = only_source(mask)
        if scores[2] != scores[3] or source is None:
            return False
        if source not in self._masks:
            found = known_array(source, self._known)
            self._masks[source] = found is not None and is_triangle(found, scores[2])
        return self._masks[source]


def _is_guard(weights: SSAValue) -> bool:
    return producer(weights, "Where") is not None and used_once(weights)


def _unguarded(weights: SSAValue) -> SSAValue | None:
    """The s of `where(isnan(s), 0, s)`."""
    where = producer(weights, "Where")
    if where is None:
        return None
    test, zero, s = where.operands
    check = producer(test, "IsNaN")
    if check is None or check.operands[0] is not s or number(zero) != 0.0:
        return None
    return s


def _masked(scores: SSAValue) -> list[tuple[SSAValue, SSAValue | None]]:
    """The ways to read scores as a product and a mask that is added."""
    add = producer(scores, "Add")
    if add is None:
        return [(scores, None)]
    left, right = add.operands
    return [(left, right), (right, left)]


def _scaled_product(raw: SSAValue) -> tuple[SSAValue, SSAValue, float] | None:
    """The Q, K and scale of `scale Q K^T`; factors of Q and K join the scale."""
    scale, values = factors(raw)
    if len(values) != 1:
        return None
    product = producer(values[0], "MatMul")
    if product is None or not used_once(values[0]):
        return None
    a, queries = factors(product.operands[0])
    b, keys = factors(product.operands[1])
    if len(queries) != 1 or len(keys) != 1:
        return None
    key = _transposed(keys[0])
    return None if key is None else (queries[0], key, scale * a * b)


def _transposed(value: SSAValue) -> SSAValue | None:
    """The K of K^T: a Transpose, possibly with batch and heads merged around it."""
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
    before, after = shape_of(inner.operands[0]), shape_of(value)
    merged = shape_of(inner.results[0])
    if before is None or after is None or merged is None or len(merged) != 3:
        return None
    if merged[1:] != before[-2:] or after != (*before[:-2], before[-1], before[-2]):
        return None
    return inner.operands[0]


def _permuted(transpose: OnnxOp) -> SSAValue | None:
    """
    K where K^T comes from (batch, sequence, heads, features) in one Transpose: another
    Transpose, made here, with the last two dimensions the other way round.
    """
    order = list(transpose.attribute("perm") or ())
    shape = shape_of(transpose.results[0])
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


def _shared_heads(value: SSAValue) -> SSAValue:
    """
    The [batch, heads, length, features] of keys or values that are repeated for groups of
    query heads, one group after the other; the value itself if it is not repeated.
    """
    reshape = producer(value, "Reshape")
    expand = None if reshape is None else producer(reshape.operands[0], "Expand")
    unsqueeze = None if expand is None else producer(expand.operands[0], "Unsqueeze")
    if expand is None or unsqueeze is None:
        return value
    wide, source = shape_of(expand.results[0]), shape_of(unsqueeze.operands[0])
    axes = array_of(unsqueeze.input(1))
    if wide is None or source is None or axes is None or len(source) != 4:
        return value
    batch, heads, length, features = source
    repeats = wide[2] if len(wide) == 5 else 0
    is_repeat = (
        axes.tolist() in ([2], [-3])
        and wide == (batch, heads, repeats, length, features)
        and shape_of(value) == (batch, heads * repeats, length, features)
    )
    return unsqueeze.operands[0] if is_repeat else value


def _fits(
    query: SSAValue, key: SSAValue, value: SSAValue, scores: tuple[int, ...]
) -> bool:
    """Whether the sizes are those of attention, with as many query heads or a multiple."""
    q, k, v = shape_of(query), shape_of(key), shape_of(value)
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        return False
    return (
        q[0] == k[0] == v[0]
        and k[1:3] == v[1:3]
        and k[1] > 0
        and q[1] % k[1] == 0
        and scores == (*q[:3], k[2])
    )


def _fits_mask(mask: SSAValue | None, query: SSAValue, scores: tuple[int, ...]) -> bool:
    """Whether a mask has the queries' element type and the shape of scores, or 1s in it."""
    if mask is None:
        return True
    shape = shape_of(mask)
    if shape is None or element(mask) != element(query) or not 2 <= len(shape) <= 4:
        return False
    aligned = scores[4 - len(shape) :]
    return shape[-1] == scores[-1] and all(
        n in (1, full) for n, full in zip(shape, aligned, strict=True)
    )
