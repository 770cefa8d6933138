"""
Recognises scaled dot-product attention that is written as matrix products and a
softmax. Replaces it by `onnx.Attention`, or by `train.dropped_attention` if dropout
acts on the probabilities. The pattern is `softmax(cap(scale Q K^T) + masks) V` over
[batch, heads, length, features]. It has several variants:

- the scale may be applied to queries and keys instead of scores;
- keys and values may be repeated for groups of query heads;
- scores may have a soft cap;
- masks, such as a causal mask or a mask of distances (ALiBi), may be added to scores or
  replace them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isclose, sqrt

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
    Replaces attention that is written as several ops by one op. The program must have
    no layouts: it is sequential, or the program of one rank. With `dropped`, the class
    replaces attention with dropout on its probabilities by `train.dropped_attention`.
    Otherwise it replaces attention without dropout by `onnx.Attention`.
    """

    def __init__(self, known: KnownMasks, *, dropped: bool = False) -> None:
        self._dropped = dropped
        self._known = known

    def replace(self, op: OnnxOp) -> bool:
        """
        Replaces attention by one op if the last op of the attention is `op`, the
        product of probabilities and values. Returns whether it was replaced.

        `onnx.Attention` returns 0 for a query whose mask is minus infinity everywhere,
        but the separate ops return NaN. A mask must therefore be provably finite or
        provably let each query see a key, unless the program itself turns NaN into 0.
        Attention with a mask that depends on a parameter is not replaced, because the
        gradient of the mask is cheaper without the op.
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
            if not _is_exact(found):
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
        """Replaces `op` by one attention op with these operands, masks and dropout."""
        masks = replace(masks, kind=element(scores.query))
        is_default = _is_double(scores) and _has_default_scale(scores)
        scale = None if is_default else scores.scale
        if dropout is None:
            options: dict[str, object] = {} if scale is None else {"scale": scale}
            if masks.is_causal:
                options["is_causal"] = 1
            if scores.cap is not None:
                options["softcap"] = scores.cap
            given = [*operands, *masks.added_before(op)]
            replace_by(op, "Attention", given, **options)
            return
        mask = next(iter(masks.added_before(op)), None)
        new = DroppedAttentionOp(
            *(*operands, mask, dropout.counter, dropout.coordinates),
            scale=scale,
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
        """
        Returns the masks of `scores`, or None if `onnx.Attention` cannot have one of
        them. `shape` is the shape of the scores. `is_guarded` tells whether NaN becomes
        0 after the softmax.
        """
        found = _Masks()
        for mask in scores.masks:
            # For dropped attention the mask is added: queries can then be split.
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
        """
        Whether `mask` can be an operand of the attention op: adding the mask to the
        scores must have the same effect as in the program, and the mask must not need a
        gradient.
        """
        if isinstance(mask, Fill):
            kind, lowest = element(mask.lowest), number(mask.lowest)
            if not isinstance(kind, Float32Type | Float64Type) or lowest is None:
                return False
            # A sum with such a low number is that number, as if it replaced the score.
            is_finite_ = -np.inf < lowest <= np.finfo(np.float32).min / 2
            if isinstance(kind, Float64Type) and is_finite_:
                is_finite_ = lowest <= np.finfo(np.float64).min / 2
            # If a query sees a key, the weights of scores this low vanish either way.
            hides = lowest <= HIDDEN and self._known.shows_a_key(mask)
            can = is_finite_ or (lowest == -np.inf and is_guarded) or hides
            return can and not is_learned(mask.condition)
        value = mask.value if isinstance(mask, Scaled) else mask
        can = is_guarded or is_finite(value) or self._known.shows_a_key(mask)
        return can and not is_learned(value)

    def _fits_mask(self, mask: Mask, query: SSAValue, scores: Sequence[int]) -> bool:
        """
        Whether the shape and the element type of `mask` suit the attention op. The
        shape must broadcast to `scores`, the shape of the scores. The element type must
        be that of `query`, unless each query provably sees a key: converted to a
        narrower type, the lowest number of a wider type could become minus infinity.
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
    The masks of attention. `is_causal` tells whether a causal mask is among them.
    `others` are all masks except the causal mask; they are added to the scores in the
    element type `kind`.
    """

    is_causal: bool = False
    others: list[Mask] = field(default_factory=list["Mask"])
    kind: Attribute | None = None

    def added_before(self, op: OnnxOp) -> list[SSAValue]:
        """
        Returns a list with the sum of the non-causal masks, computed before `op`. The
        list is empty if there are no non-causal masks.
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
    """
    Returns a value that has the effect of `mask` when it is added to scores. The value
    is computed before `op` and has the element type `kind`.
    """
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
    """Returns a constant with the element type of `like`, made before `op`."""
    kind = element(like)
    assert kind is not None
    array = np.array(number, numpy_dtype(kind))
    return made_before(op, "Constant", [], (), kind, value=array)


@dataclass(frozen=True)
class _Probabilities:
    """
    The attention probabilities: the softmax of `scores`. With `is_guarded`, each NaN in
    the softmax becomes 0. `dropout` is the dropout on the probabilities, or None.
    """

    scores: SSAValue
    is_guarded: bool = False
    dropout: DropoutOp | None = None


def _probabilities(value: SSAValue) -> _Probabilities | None:
    """
    Returns the attention probabilities whose last op computes `value`, or None if
    `value` is not made of attention probabilities. Intermediate values must have no
    other uses. Casts to a narrower type are ignored.
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
    """Returns s if `weights` is `where(isnan(s), 0, s)`, else None."""
    where = producer(weights, "Where")
    if where is None:
        return None
    test, zero, s = where.operands
    check = producer(test, "IsNaN")
    if check is None or check.operands[0] is not s or number(zero) != 0.0:
        return None
    return s


def _is_double(scores: Scores) -> bool:
    return isinstance(element(scores.query), Float64Type)


def _has_default_scale(scores: Scores) -> bool:
    """
    Whether the scale of `scores` equals the default scale of attention, up to rounding.
    """
    shape = known_shape(scores.query)
    return shape is not None and isclose(
        scores.scale * sqrt(shape[-1]), 1, rel_tol=1e-14
    )


def _is_exact(scores: Scores) -> bool:
    """
    Whether an attention op computes these scores as exactly as the program does. The
    op's scale has 32 bits; for f64 scores this is enough only if the scale is the
    default scale.
    """
    if not _is_double(scores):
        return True
    cap = 1.0 if scores.cap is None else scores.cap
    numbers = [cap] if _has_default_scale(scores) else [cap, scores.scale]
    return all(float(np.float32(number)) == number for number in numbers)


def _shared_heads(value: SSAValue) -> SSAValue:
    """
    Returns the keys or values before they were repeated for groups of query heads, or
    `value` itself if it is not repeated. The result has the shape [batch, heads,
    length, features].
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
    Whether attention can have the given operands and scores, by their shapes. The
    number of query heads must be a multiple of the number of key heads.
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
