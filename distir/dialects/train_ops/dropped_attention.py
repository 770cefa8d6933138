"""Fused attention of whose probabilities some are dropped, and its gradient."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import IntegerAttr, TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    irdl_op_definition,
    result_def,
)

from distir.dialects.train_ops.attention import (
    AttentionOp,
    FusedAttentionGradOp,
    FusedAttentionOp,
)
from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.dropout import DrawingOp


def _assembly(operands: str, results: str) -> str:
    """
    Returns the textual form of an op with these operands, to which the mask, the counter and
    the coordinates are added, and these results.
    """
    first = " `,` ".join(f"${name}" for name in operands.split())
    types = " `,` ".join(f"type(${name})" for name in operands.split())
    ends = " `,` ".join(f"type(${name})" for name in results.split())
    return (
        f"{first} (`mask` $mask^)? `,` $counter (`at` `(` $coordinates^ `)`)? attr-dict `:` "
        f"{types} (`mask` type($mask)^)? `,` type($counter) "
        f"(`at` `(` type($coordinates)^ `)`)? `->` {ends}"
    )


class DroppedAttentionBase(FusedAttentionOp, DrawingOp):
    """
    Base of attention with dropout inside, and of its gradient: `FusedAttentionOp` defines
    the probabilities P, [batch, query heads, queries, keys], and `DrawingOp` which of them
    are kept.
    """

    irdl_options = (
        ParsePropInAttrDict(),
        AttrSizedOperandSegments(as_property=True),
    )

    @property
    def drawn_shape(self) -> tuple[int, ...]:
        return self.sizes.scores


@irdl_op_definition
class DroppedAttentionOp(DroppedAttentionBase):
    """
    y = D v, where D is P / (1 - ratio) where it is kept, else 0. The gradient draws the same
    numbers again, so neither P nor the mask is kept for it, but

        logsumexp: log(sum(exp(cap(scale * q k') + mask)) along keys), 0 for a query that
        sees no key: [batch, query heads, queries], f64 for f64 and f32 for others.
    """

    name = "train.dropped_attention"

    y = result_def(TensorType)
    logsumexp = result_def(TensorType)

    assembly_format = _assembly("q k v", "y logsumexp")

    def __init__(
        self,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        mask: SSAValue | None,
        counter: SSAValue,
        coordinates: Any = (),
        **settings: Any,
    ):
        """Makes the op of its operands and of its properties by name; types follow."""
        heads = {n: settings.get(n) for n in ("q_num_heads", "kv_num_heads")}
        known = {
            name: count.value.data if isinstance(count, IntegerAttr) else count
            for name, count in heads.items()
        }
        y, logsumexp = AttentionOp.types_of(q, v, **known)
        TrainOp.__init__(
            self,
            *(q, k, v, mask, counter, coordinates),
            y=y,
            logsumexp=logsumexp,
            **settings,
        )

    def without_dropout(self) -> AttentionOp:
        """Returns attention of the same operands, with the same types, that drops none."""
        given = [self.q, self.k, self.v, *([] if self.mask is None else [self.mask])]
        names = AttentionOp.get_irdl_definition().properties
        return AttentionOp.create(
            operands=given,
            result_types=[r.type for r in self.results],
            properties={n: a for n, a in self.properties.items() if n in names},
            attributes=dict(self.attributes),
        )

    def verify_(self) -> None:
        super().verify_()
        self.check_result("y", self.y)
        self.check_logsumexp(self.logsumexp)


@irdl_op_definition
class DroppedAttentionGradOp(FusedAttentionGradOp, DroppedAttentionBase):
    """
    The gradient of `train.dropped_attention`, from its results `y` and `logsumexp`. Without
    `cap`, and with kept = 1 / (1 - ratio) where an element is kept, else 0,

        P = exp(scale * q k' + mask - logsumexp)
        dv = (P * kept)' dy, dP = (dy v') * kept, dS = P * (dP - sum(dy * y) along features)
        dq = scale * dS k, dk = scale * dS' q

    where `dk` and `dv` are sums over the query heads of a key head.
    """

    name = "train.dropped_attention_grad"

    assembly_format = _assembly("dy y logsumexp q k v", "dq dk dv")


OPS = [DroppedAttentionOp, DroppedAttentionGradOp]
