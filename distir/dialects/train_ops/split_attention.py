"""
Attention over a cache whose positions are split over devices: attention to each part of
the keys by itself, and writes of new tokens to a part of a cache.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType, i64
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.attention import FusedAttentionOp
from distir.dialects.train_ops.base import I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    accumulation_type,
    check_element_type,
    check_type,
)


@irdl_op_definition
class SplitAttentionOp(FusedAttentionOp):
    """
    Attention to each of `splits` equal parts of the keys by itself (split-KV, as in
    Flash-Decoding). For part s, with the keys and values k_s, v_s and the columns
    mask_s of the mask,

        logsumexp_s = log(sum(exp(cap(scale * q k_s') + mask_s)) along the keys)
        y_s = softmax(cap(scale * q k_s') + mask_s) v_s

        y: [splits, batch, query heads, queries, value size]
        logsumexp: [splits, batch, query heads, queries], f64 for f64 and f32 for other
        types

    `FusedAttentionOp` describes the operands, which must have four dimensions here;
    parts are contiguous. For a query that sees no key of a part, y_s is 0 and
    logsumexp_s the lowest finite number. Attention to all keys is thus the sum over s
    of y_s * softmax(logsumexp along the parts)_s. `is_causal`, `blocks` and `run` are
    not allowed.
    """

    name = "train.split_attention"

    splits = prop_def(I64)
    y = result_def(TensorType)
    logsumexp = result_def(TensorType)

    def __init__(
        self,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        mask: SSAValue | None = None,
        *,
        splits: int,
        scale: float | None = None,
        softcap: float | None = None,
    ):
        """Makes the op. Its result types are derived from the operands."""
        rows = (splits, *shape_of(q)[:3])
        TrainOp.__init__(
            self,
            *(q, k, v, mask),
            y=TensorType(element_type(q), (*rows, shape_of(v)[3])),
            logsumexp=TensorType(accumulation_type(q), rows),
            splits=splits,
            scale=scale,
            softcap=softcap,
        )

    @property
    def split_count(self) -> int:
        """The number of parts of the keys."""
        return self.splits.value.data

    def verify_(self) -> None:
        super().verify_()
        refused = {
            "is_causal": self.is_causal,
            "blocks": self.blocks,
            "q_num_heads": self.q_num_heads,
        }
        for name, value in refused.items():
            if value is not None:
                raise VerifyException(f"{self.name}: remove {name}")
        sizes, count = self.sizes, self.split_count
        if count < 1 or sizes.keys % count:
            raise VerifyException(
                f"{self.name}: {sizes.keys} keys are not {count} equal parts"
            )
        rows = (count, *sizes.scores[:3])
        y = TensorType(element_type(self.q), (*rows, sizes.value_head))
        check_type(self, "y", self.y, y)
        sums = TensorType(accumulation_type(self.q), rows)
        check_type(self, "logsumexp", self.logsumexp, sums)


@irdl_op_definition
class WriteSlotsOp(TrainOp):
    """
    Writes new tokens to some slots of a cache. A cache has `total` slots for each
    sequence; `cache` has those that `slots` numbers, in ascending order. The shapes are

        cache: [batch, heads, held slots, width]
        new: [batch, heads, tokens, width]
        first: [batch], i64
        slots: [held slots], i64

    Token t of `new` for sequence b belongs to slot (first[b] + t) modulo `total`.
    Tokens of slots that `cache` does not have are not written. With all slots 0, 1, 2,
    ... the op does the same as `onnx.TensorScatter` in its circular mode. Without the
    dimension of widths, in `cache` and `new`, each head has one number per token, such
    as the scale of a row of 8 bits.
    """

    name = "train.write_slots"
    FACTORS: ClassVar[str] = (
        "[b, h, s, *k], [b, h, t, *k], [b], [s] -> [b, h, s, *k] keep t linear 0+1"
    )
    IS_CACHE_WRITE: ClassVar[bool] = True
    TYPES: ClassVar[Types] = {"result": like("cache")}

    cache = operand_def(TensorType)
    new = operand_def(TensorType)
    first = operand_def(TensorType)
    slots = operand_def(TensorType)
    total = prop_def(I64)
    result = result_def(TensorType)

    def verify_(self) -> None:
        super().verify_()
        cache, new = shape_of(self.cache), shape_of(self.new)
        if len(cache) not in (3, 4):
            raise VerifyException(
                f"{self.name}: cache has shape {list(cache)}; expected [batch, heads, "
                f"slots] or [batch, heads, slots, width]"
            )
        if len(new) != len(cache) or (*new[:2], *new[3:]) != (*cache[:2], *cache[3:]):
            raise VerifyException(
                f"{self.name}: new has shape {list(new)}, which differs from cache, "
                f"{list(cache)}, in more than dimension 2"
            )
        check_element_type(self, "new", self.new, element_type(self.cache))
        check_type(self, "first", self.first, TensorType(i64, cache[:1]))
        check_type(self, "slots", self.slots, TensorType(i64, cache[2:3]))
        total = self.total.value.data
        if total < max(cache[2], new[2]):
            raise VerifyException(
                f"{self.name}: total is {total}, but there are {cache[2]} slots and "
                f"{new[2]} tokens"
            )


OPS = [SplitAttentionOp, WriteSlotsOp]
