"""
Causal attention of tokens in any order, and the op that merges attention over different
keys.
"""

from __future__ import annotations

from typing import Any, ClassVar

from xdsl.dialects.builtin import TensorType, i64
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.attention import (
    AttentionOp,
    FusedAttentionGradOp,
    FusedAttentionOp,
)
from distir.dialects.train_ops.base import I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    accumulation_type,
    check_element_type,
    check_type,
)


class CausalAttentionOp(FusedAttentionOp):
    """
    Base of causal attention that is told where in their sequence queries and keys are, and
    of its gradient, so that a device can have any part of a sequence:

        query_positions: [queries], key_positions: [keys], i64

    A query sees the keys whose position is not behind its own; `FusedAttentionOp` says the
    rest. `is_causal`, which counts positions from 0, does not go with it.

    - `step`: of `blocks` that go around a ring, how many devices the keys have come from the
      one whose queries have the same positions. Positions decide the results; this tells
      the amount of work before they are known.
    """

    query_positions = operand_def(TensorType)
    key_positions = operand_def(TensorType)
    step = opt_prop_def(I64)

    def verify_(self) -> None:
        super().verify_()
        if self.is_causal is not None:
            raise VerifyException(
                f"{self.name} is causal by its positions; remove is_causal"
            )
        if self.step is not None and self.step.value.data < 0:
            raise VerifyException(f"{self.name}: step is negative")
        lengths = self.sizes.queries, self.sizes.keys
        for name, value, length in zip(
            ("query_positions", "key_positions"),
            (self.query_positions, self.key_positions),
            lengths,
            strict=True,
        ):
            check_type(self, name, value, TensorType(i64, [length]))


@irdl_op_definition
class PlacedAttentionOp(CausalAttentionOp):
    """
    y = P v, P = softmax(cap(scale * q k') + mask) over the keys that a query sees;
    `CausalAttentionOp` says which.

        logsumexp: log(sum(exp(cap(scale * q k') + mask)) along these keys), -infinity for a
        query that sees none: [batch, query heads, queries], f64 for f64 and f32 for others.
    """

    name = "train.placed_attention"

    y = result_def(TensorType)
    logsumexp = result_def(TensorType)

    def __init__(
        self,
        query_positions: SSAValue,
        key_positions: SSAValue,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        mask: SSAValue | None = None,
        **settings: Any,
    ):
        """Makes the op of its operands and of its properties by name; types follow."""
        y, logsumexp = AttentionOp.types_of(q, v, **settings)
        TrainOp.__init__(
            self,
            *(query_positions, key_positions, q, k, v, mask),
            y=y,
            logsumexp=logsumexp,
            **settings,
        )

    def verify_(self) -> None:
        super().verify_()
        self.check_result("y", self.y)
        self.check_logsumexp(self.logsumexp)


@irdl_op_definition
class PlacedAttentionGradOp(FusedAttentionGradOp, CausalAttentionOp):
    """
    The gradient of `train.placed_attention`, as `train.attention_grad` is that of
    `train.attention`. `y` and `logsumexp` may be those over more keys than these: then `dq` is
    these keys' term of the sum over all.
    """

    name = "train.placed_attention_grad"


@irdl_op_definition
class MergeAttentionOp(TrainOp):
    """
    Attention over all keys from that over some of them and that over the others (online
    softmax):

        logsumexp = log(exp(logsumexp_a) + exp(logsumexp_b))
        y = exp(logsumexp_a - logsumexp) y_a + exp(logsumexp_b - logsumexp) y_b

    where `y` is [batch, query heads, queries, value size] or [batch, queries, query heads *
    value size], and `logsumexp` [batch, query heads, queries]. A query that neither saw a key
    has -infinity and 0.
    """

    name = "train.merge_attention"
    TORCH: ClassVar[str] = "merge_attention({*})"
    TORCH_MODULE: ClassVar[str] = "fused_attention"

    y_a = operand_def(TensorType)
    logsumexp_a = operand_def(TensorType)
    y_b = operand_def(TensorType)
    logsumexp_b = operand_def(TensorType)
    y = result_def(TensorType)
    logsumexp = result_def(TensorType)

    TYPES: ClassVar[Types] = {
        "y_b": like("y_a"),
        "logsumexp_b": like("logsumexp_a"),
        "y": like("y_a"),
        "logsumexp": like("logsumexp_a"),
    }

    @property
    def is_packed(self) -> bool:
        """Whether heads and features share one dimension."""
        return len(shape_of(self.y_a)) == 3

    def verify_(self) -> None:
        super().verify_()
        y, rows = shape_of(self.y_a), shape_of(self.logsumexp_a)
        wide = accumulation_type(self.y_a)
        check_element_type(self, "logsumexp_a", self.logsumexp_a, wide)
        fits = len(rows) == 3 and (
            (len(y) == 4 and y[:3] == rows)
            or (len(y) == 3 and y[:2] == (rows[0], rows[2]) and not y[2] % rows[1])
        )
        if not fits:
            raise VerifyException(
                f"{self.name}: logsumexp_a has shape {list(rows)}, which are not the rows "
                f"of y_a, {list(y)}"
            )


OPS = [PlacedAttentionOp, PlacedAttentionGradOp, MergeAttentionOp]
