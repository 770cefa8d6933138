"""
Recognises scaled dot-product attention that is written out in products and a softmax.

It becomes `onnx.Attention`, or `train.dropped_attention` if probabilities are dropped. The
pattern is `softmax(cap(scale Q K^T) + masks) V` over [batch, heads, length, features], where factors of queries and keys may be part of the
scale, keys and values may be repeated for groups of query heads, scores may have a soft
cap, and masks may be added or fill the scores, such as a causal mask or one for distances
(ALiBi).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from xdsl.dialects.builtin import Float32Type, Float64Type
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import layout_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype, onnx_element_type
from distir.dialects.tensors import known_shape
from distir.dialects.train_ops.dropout import DropoutOp, DroppedAttentionOp
from distir.transforms.patterns.attention_scores import (
    Fill,
    Mask,
    Scaled,
    Scores,
    readings,
)
from distir.transforms.patterns.masks import (
    HIDDEN,
    KnownMasks,
    is_finite,
    is_learned,
    value_of,
)
from distir.transforms.patterns.match import (
    array_of,
    element,
    made_before,
    number,
    producer,
    replace_by,
    uncast,
    used_once,
)


class AttentionRaiser:
    """
    Replaces attention that is written out by one op, in a program without layouts: a
    sequential one, or that of one rank.

    With `dropped`, this is attention whose probabilities a `train.dropout` drops, which
    becomes `train.dropped_attention`; else attention without dropout, which becomes
    `onnx.Attention`.
    """

    def __init__(self, known: KnownMasks, *, dropped: bool = False) -> None:
        self._dropped = dropped
        self._known = known

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
        read = _probabilities(weights)
        if read is None or (read.dropout is not None) != self._dropped:
            return False
        scores = read.scores
        shape = known_shape(scores)
        if shape is None or len(shape) != 4:
            return False
        for found in readings(scores):
            mask = self._read_masks(found, shape, read.is_guarded)
            key, value_ = _shared_heads(found.key), _shared_heads(value)
            if mask is None or not _fits(found.query, key, value_, shape):
                continue
            self._put(op, found, (found.query, key, value_), mask, read.dropout)
            return True
        return False

    def _put(
        self,
        op: OnnxOp,
        scores: Scores,
        operands: tuple[SSAValue, SSAValue, SSAValue],
        masks: _Masks,
        dropout: DropoutOp | None,
    ) -> None:
        """Puts one op with these queries, keys and values in the place of a product."""
        masks = replace(masks, kind=element(scores.query))
        if dropout is None:
            options: dict[str, object] = {"is_causal": 1} if masks.is_causal else {}
            if scores.cap is not None:
                options["softcap"] = scores.cap
            given = [*operands, *masks.added_before(op)]
            replace_by(op, "Attention", given, scale=scores.scale, **options)
            return
        mask = next(iter(masks.added_before(op)), None)
        new = DroppedAttentionOp(
            *(*operands, mask, dropout.counter, dropout.coordinates),
            scale=scores.scale,
            softcap=scores.cap,
            **dropout.drawing,
        )
        new.attributes.update(op.attributes)
        new.y.name_hint = op.results[0].name_hint
        Rewriter.insert_op(new, InsertPoint.before(op))
        op.results[0].replace_all_uses_with(new.y)

    def _read_masks(
        self, scores: Scores, shape: Sequence[int], is_guarded: bool
    ) -> _Masks | None:
        """Returns the masks of scores; None if `onnx.Attention` cannot have them."""
        found = _Masks()
        for mask in scores.masks:
            # With a mask that is added, queries can be split, and no kernel skips keys.
            is_square = not self._dropped and shape[2] == shape[3]
            if is_square and self._known.is_causal(mask, shape[2]):
                found.is_causal = True
            elif self._takes(mask, is_guarded) and self._fits_mask(
                mask, scores.query, shape
            ):
                found.others.append(mask)
            else:
                return None
        return found

    def _takes(self, mask: Mask, is_guarded: bool) -> bool:
        """Whether a mask has the same effect if it is added, and needs no gradient."""
        if isinstance(mask, Fill):
            kind, lowest = element(mask.lowest), number(mask.lowest)
            if not isinstance(kind, Float32Type | Float64Type) or lowest is None:
                return False
            # Added, the lowest number is left of the sum; others would not be.
            is_finite_ = -np.inf < lowest <= np.finfo(np.float32).min / 2
            if isinstance(kind, Float64Type) and is_finite_:
                is_finite_ = lowest <= np.finfo(np.float64).min / 2
            # Next to a key that is seen, weights of scores this low vanish either way.
            hides = lowest <= HIDDEN and self._known.shows_a_key(mask)
            can = is_finite_ or (lowest == -np.inf and is_guarded) or hides
            return can and not is_learned(mask.condition)
        value = mask.value if isinstance(mask, Scaled) else mask
        can = is_guarded or is_finite(value) or self._known.shows_a_key(mask)
        return can and not is_learned(value)

    def _fits_mask(self, mask: Mask, query: SSAValue, scores: Sequence[int]) -> bool:
        """
        Whether a mask has a shape that broadcasts to that of the scores, and the queries'
        element type. A wider type will do where each query is known to see a key: the
        lowest number of the wider type may be minus infinity in the narrower one.
        """
        value = value_of(mask)
        shape, kind = known_shape(value), element(value)
        if isinstance(mask, Fill):
            kind = element(mask.lowest)
        if shape is None or not 2 <= len(shape) <= 4:
            return False
        if kind != element(query) and not self._known.shows_a_key(mask):
            return False
        aligned = scores[4 - len(shape) :]
        return shape[-1] == scores[-1] and all(
            n in (1, full) for n, full in zip(shape, aligned, strict=True)
        )


@dataclass
class _Masks:
    """
    Whether attention is causal, and its other masks, which are added in the element type
    `kind`.
    """

    is_causal: bool = False
    others: list[Mask] = field(default_factory=list["Mask"])
    kind: Attribute | None = None

    def added_before(self, op: OnnxOp) -> list[SSAValue]:
        """
        Returns the sum of the other masks, computed before an op; empty if there are none.
        """
        values = [_as_added(mask, op, self.kind) for mask in self.others]
        if not values:
            return []
        total, *rest = values
        for value in rest:
            sizes = np.broadcast_shapes(
                known_shape(total) or (), known_shape(value) or ()
            )
            total = made_before(op, "Add", [total, value], sizes)
        return [total]


def _as_added(mask: Mask, op: OnnxOp, kind: Attribute | None) -> SSAValue:
    """Returns the mask to be added, in an element type, that has the effect of a mask."""
    value = value_of(mask)
    shape = known_shape(value)
    assert shape is not None
    if isinstance(mask, Scaled):
        factor = _number_before(op, mask.factor, value)
        value = made_before(op, "Mul", [value, factor], shape)
    elif isinstance(mask, Fill):
        zero = _number_before(op, 0.0, mask.lowest)
        sides = [mask.lowest, zero] if mask.hidden else [zero, mask.lowest]
        own = element(mask.lowest)
        value = made_before(op, "Where", [value, *sides], shape, own)
    if kind is not None and element(value) != kind:
        to = onnx_element_type(kind)
        value = made_before(op, "Cast", [value], shape, kind, to=to)
    return value


def _number_before(op: OnnxOp, number: float, like: SSAValue) -> SSAValue:
    """Returns a constant of the element type of another value, made before an op."""
    kind = element(like)
    assert kind is not None
    array = np.array(number, numpy_dtype(kind))
    return made_before(op, "Constant", [], (), kind, value=array)


@dataclass(frozen=True)
class _Probabilities:
    """
    Probabilities in front of the product with the values: the softmax of `scores`, which
    are 0 instead of NaN if `is_guarded`, and which `dropout` drops if there is one.
    """

    scores: SSAValue
    is_guarded: bool = False
    dropout: DropoutOp | None = None


def _probabilities(value: SSAValue) -> _Probabilities | None:
    """
    Reads probabilities, of which intermediate values have no other uses. Casts to a
    narrower type are passed over.
    """
    dropout, is_guarded = None, False
    while True:
        value = uncast(value, widens=False)
        softmax = producer(value, "Softmax")
        if softmax is not None and (used_once(value) or is_guarded):
            last = softmax.attribute("axis") % 4 == 3
            return (
                _Probabilities(softmax.operands[0], is_guarded, dropout)
                if last
                else None
            )
        if not used_once(value):
            return None
        if isinstance(value.owner, DropoutOp) and dropout is None:
            dropout = value.owner
            value = dropout.x
            if dropout.mask is not None:
                return None
            continue
        guarded = _unguarded(value)
        if guarded is None:
            return None
        value, is_guarded = guarded, True


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
