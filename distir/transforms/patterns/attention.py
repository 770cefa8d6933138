"""
Recognises scaled dot-product attention that is written out in products and a softmax.

It becomes `onnx.Attention`. The pattern is `softmax(cap(scale Q K^T) + masks) V` over
[batch, heads, length, features], where factors of queries and keys may be part of the
scale, keys and values may be repeated for groups of query heads, scores may have a soft
cap, and masks may be added or fill the scores, such as a causal mask or one for distances
(ALiBi).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import Float32Type, Float64Type, i1
from xdsl.ir import Attribute, SSAValue

from distir.dialects.dist import layout_of
from distir.dialects.onnx import operator
from distir.dialects.onnx_op import OnnxOp
from distir.dialects.onnx_values import numpy_dtype, tensor_type
from distir.dialects.tensors import known_shape
from distir.transforms.patterns.attention_scores import Fill, Scores, readings
from distir.transforms.patterns.known_arrays import KnownArrays, once
from distir.transforms.patterns.masks import (
    is_finite,
    is_learned,
    is_triangle,
    only_source,
)
from distir.transforms.patterns.match import (
    array_of,
    element,
    number,
    producer,
    replace_by,
    used_once,
)


class AttentionRaiser:
    """
    Replaces attention that is written out by `onnx.Attention`, in a program without
    layouts: a sequential one, or that of one rank.
    """

    def __init__(self) -> None:
        self._triangles: dict[SSAValue, bool] = {}
        self._known = KnownArrays()

    def replace(self, op: OnnxOp) -> bool:
        """
        If `op`, a product with the values, is the end of attention, replaces it; returns
        whether it did.

        `onnx.Attention` gives 0 for a query whose mask is minus infinity everywhere, where
        the written-out form gives NaN. So a mask must be finite as far as its ops tell,
        unless the program itself turns NaN weights into 0. A mask that depends on a
        parameter stays written out, where its gradient is cheaper.
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
        shape = known_shape(scores)
        if shape is None or len(shape) != 4 or softmax.attribute("axis") % 4 != 3:
            return False
        for found in readings(scores):
            mask = self._read_masks(found, shape, guarded is not None)
            key, value_ = _shared_heads(found.key), _shared_heads(value)
            if mask is None or not _fits(found.query, key, value_, shape):
                continue
            options: dict[str, object] = {"is_causal": 1} if mask.is_causal else {}
            if found.cap is not None:
                options["softcap"] = found.cap
            operands = [found.query, key, value_, *mask.added_before(op)]
            replace_by(op, "Attention", operands, scale=found.scale, **options)
            return True
        return False

    def _read_masks(
        self, scores: Scores, shape: Sequence[int], is_guarded: bool
    ) -> _Masks | None:
        """Returns the masks of scores; None if `onnx.Attention` cannot have them."""
        found = _Masks()
        for mask in scores.masks:
            if self._is_causal(mask, shape):
                found.is_causal = True
            elif self._takes(mask, is_guarded) and _fits_mask(
                mask, scores.query, shape
            ):
                found.others.append(mask)
            else:
                return None
        return found

    def _takes(self, mask: SSAValue | Fill, is_guarded: bool) -> bool:
        """Whether a mask has the same effect if it is added, and needs no gradient."""
        if isinstance(mask, Fill):
            kind, lowest = element(mask.lowest), number(mask.lowest)
            if not isinstance(kind, Float32Type | Float64Type) or lowest is None:
                return False
            # Added, the lowest number is left of the sum; others would not be.
            is_finite_ = -np.inf < lowest <= np.finfo(np.float32).min / 2
            if isinstance(kind, Float64Type) and is_finite_:
                is_finite_ = lowest <= np.finfo(np.float64).min / 2
            can = is_finite_ or (lowest == -np.inf and is_guarded)
            return (can or self._shows_a_key(mask)) and not is_learned(mask.condition)
        can = is_guarded or is_finite(mask) or self._shows_a_key(mask)
        return can and not is_learned(mask)

    def _shows_a_key(self, mask: SSAValue | Fill) -> bool:
        """Whether a mask is known to leave each query at least one key."""
        array = self._array(mask)
        return array is not None and bool(np.isfinite(once(array)).any(-1).all())

    def _array(self, mask: SSAValue | Fill) -> npt.NDArray[Any] | None:
        """Returns what a mask adds to the scores if it depends on constants alone."""
        source = only_source(mask.condition if isinstance(mask, Fill) else mask)
        array = None if source is None else self._known.of(source)
        if array is None or not isinstance(mask, Fill):
            return array
        lowest = array_of(mask.lowest)
        assert lowest is not None
        hidden = once(array) == mask.hidden
        return np.broadcast_to(
            np.where(hidden, lowest.reshape(()), lowest.dtype.type(0)), array.shape
        )

    def _is_causal(self, mask: SSAValue | Fill, scores: Sequence[int]) -> bool:
        """
        Whether a mask is known to hide the keys after each query's position and nothing
        else.
        """
        if scores[2] != scores[3]:
            return False
        source = mask.condition if isinstance(mask, Fill) else only_source(mask)
        if source is None:
            return False
        if isinstance(mask, Fill) or source not in self._triangles:
            array = self._array(mask)
            found = array is not None and is_triangle(array, scores[2])
            if isinstance(mask, Fill):
                return found
            self._triangles[source] = found
        return self._triangles[source]


@dataclass
class _Masks:
    """Whether attention is causal, and its other masks, which are added."""

    is_causal: bool = False
    others: list[SSAValue | Fill] = field(default_factory=list["SSAValue | Fill"])

    def added_before(self, op: OnnxOp) -> list[SSAValue]:
        """
        Returns the sum of the other masks, computed before an op; empty if there are none.
        """
        values = [_as_added(m, op) if isinstance(m, Fill) else m for m in self.others]
        if not values:
            return []
        total, *rest = values
        for value in rest:
            sizes = np.broadcast_shapes(
                known_shape(total) or (), known_shape(value) or ()
            )
            total = _made_before(op, "Add", [total, value], sizes)
        return [total]


def _as_added(fill: Fill, op: OnnxOp) -> SSAValue:
    """Returns the mask to be added that has the effect of filling scores."""
    kind, shape = element(fill.lowest), known_shape(fill.condition)
    assert kind is not None and shape is not None
    zero = _made_before(
        *(op, "Constant", [], ()), kind, value=np.array(0, numpy_dtype(kind))
    )
    sides = [fill.lowest, zero] if fill.hidden else [zero, fill.lowest]
    return _made_before(op, "Where", [fill.condition, *sides], shape, kind)


def _made_before(
    op: OnnxOp,
    name: str,
    operands: Sequence[SSAValue],
    shape: Sequence[int],
    kind: Attribute | None = None,
    **attributes: object,
) -> SSAValue:
    """
    Returns the result of an operator that is inserted before an op; by default it has the
    type of its operands.
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


def _is_guard(weights: SSAValue) -> bool:
    return producer(weights, "Where") is not None and used_once(weights)


def _unguarded(weights: SSAValue) -> SSAValue | None:
    """Returns the s of `where(isnan(s), 0, s)`; None for any other value."""
    where = producer(weights, "Where")
    if where is None:
        return None
    test, zero, s = where.operands
    check = producer(test, "IsNaN")
    if check is None or check.operands[0] is not s or number(zero) != 0.0:
        return None
    return s


def _shared_heads(value: SSAValue) -> SSAValue:
    """
    Returns the [batch, heads, length, features] of keys or values that are repeated for
    groups of query heads, one group after the other; the value itself if it is not
    repeated.
    """
    reshape = producer(value, "Reshape")
    expand = None if reshape is None else producer(reshape.operands[0], "Expand")
    unsqueeze = None if expand is None else producer(expand.operands[0], "Unsqueeze")
    if expand is None or unsqueeze is None:
        return value
    wide, source = known_shape(expand.results[0]), known_shape(unsqueeze.operands[0])
    axes = array_of(unsqueeze.input(1))
    if wide is None or source is None or axes is None or len(source) != 4:
        return value
    batch, heads, length, features = source
    repeats = wide[2] if len(wide) == 5 else 0
    is_repeat = (
        axes.tolist() in ([2], [-3])
        and wide == (batch, heads, repeats, length, features)
        and known_shape(value) == (batch, heads * repeats, length, features)
    )
    return unsqueeze.operands[0] if is_repeat else value


def _fits(
    query: SSAValue, key: SSAValue, value: SSAValue, scores: tuple[int, ...]
) -> bool:
    """
    Whether the sizes are those of attention whose number of query heads is a multiple of
    the number of key heads.
    """
    q, k, v = known_shape(query), known_shape(key), known_shape(value)
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        return False
    return (
        q[0] == k[0] == v[0]
        and k[1:3] == v[1:3]
        and k[1] > 0
        and q[1] % k[1] == 0
        and scores == (*q[:3], k[2])
    )


def _fits_mask(mask: SSAValue | Fill, query: SSAValue, scores: Sequence[int]) -> bool:
    """
    Whether a mask has the queries' element type and a shape that broadcasts to that of the
    scores.
    """
    value, kind = mask, element(query)
    if isinstance(mask, Fill):
        value, kind = mask.condition, i1
    assert isinstance(value, SSAValue)
    shape = known_shape(value)
    if shape is None or element(value) != kind or not 2 <= len(shape) <= 4:
        return False
    aligned = scores[4 - len(shape) :]
    return shape[-1] == scores[-1] and all(
        n in (1, full) for n, full in zip(shape, aligned, strict=True)
    )
