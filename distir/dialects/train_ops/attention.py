"""The gradient of fused attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.train_ops.base import F32, I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_shape,
    element_type,
    shape_of,
)


@dataclass(frozen=True)
class AttentionSizes:
    """`query_heads` is a multiple of `key_heads`; the other sizes are of one head."""

    batch: int
    query_heads: int
    key_heads: int
    queries: int
    keys: int
    head: int
    value_head: int

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """The shape of the scores, `[batch, heads, queries, keys]`."""
        return self.batch, self.query_heads, self.queries, self.keys


@irdl_op_definition
class AttentionGradOp(TrainOp):
    """
    The gradient of y = P v, P = softmax(scale * q k' + mask), over

        q, dq: [batch, query heads, queries, head size]
        k, dk: [batch, key heads, keys, head size]
        v, dv: [batch, key heads, keys, value size]
        dy: [batch, query heads, queries, value size]

    or, with `q_num_heads` and `kv_num_heads`, `[batch, length, heads * size]`. Each key
    head serves as many query heads in a row. `mask` broadcasts to [batch, query heads,
    queries, keys]; booleans say which keys a query sees, floats are added and get no
    gradient here. With `is_causal`, query i sees keys up to i. `scale` is the inverse root
    of the head size unless given. A query that sees no key has P = 0. P is computed again:

        dv = P' dy, dP = dy v', dS = P * (dP - sum(dP * P) along keys)
        dq = scale * dS k, dk = scale * dS' q

    where `dk` and `dv` are sums over the query heads of a key head.
    """

    name = "train.attention_grad"

    dy = operand_def(TensorType)
    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    mask = opt_operand_def(TensorType)
    is_causal = opt_prop_def(UnitAttr)
    scale = opt_prop_def(F32)
    q_num_heads = opt_prop_def(I64)
    kv_num_heads = opt_prop_def(I64)
    dq = result_def(TensorType)
    dk = result_def(TensorType)
    dv = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dq": like("q"), "dk": like("k"), "dv": like("v")}

    @property
    def is_packed(self) -> bool:
        """Whether heads and features share one dimension."""
        return self.q_num_heads is not None

    @property
    def sizes(self) -> AttentionSizes:
        """The (global) sizes of batch, heads, sequences and features."""
        q, k, v = shape_of(self.q), shape_of(self.k), shape_of(self.v)
        if self.q_num_heads is None or self.kv_num_heads is None:
            return AttentionSizes(q[0], q[1], k[1], q[2], k[2], q[3], v[3])
        heads, key_heads = self.q_num_heads.value.data, self.kv_num_heads.value.data
        return AttentionSizes(
            q[0],
            heads,
            key_heads,
            q[1],
            k[1],
            q[2] // heads,
            v[2] // key_heads,
        )

    @property
    def factor(self) -> float:
        """What scores are multiplied by."""
        return (
            1 / sqrt(self.sizes.head) if self.scale is None else self.scale.value.data
        )

    def verify_(self) -> None:
        if (self.q_num_heads is None) != (self.kv_num_heads is None):
            raise VerifyException(
                f"{self.name}: give q_num_heads and kv_num_heads together, or neither"
            )
        rank = 3 if self.is_packed else 4
        named = {"dy": self.dy, "q": self.q, "k": self.k, "v": self.v}
        for name, value in named.items():
            if len(shape_of(value)) != rank:
                raise VerifyException(
                    f"{self.name}: {name} has {len(shape_of(value))} dimensions, expected "
                    f"{rank}"
                )
            check_element_type(self, name, value, element_type(self.q))
        for heads in (self.q_num_heads, self.kv_num_heads):
            if heads is not None and heads.value.data < 1:
                raise VerifyException(
                    f"{self.name}: the numbers of heads must be positive"
                )
        sizes = self.sizes
        self._check("dy", self.dy, sizes.query_heads, sizes.queries, sizes.value_head)
        self._check("q", self.q, sizes.query_heads, sizes.queries, sizes.head)
        self._check("k", self.k, sizes.key_heads, sizes.keys, sizes.head)
        self._check("v", self.v, sizes.key_heads, sizes.keys, sizes.value_head)
        if not sizes.key_heads or sizes.query_heads % sizes.key_heads:
            raise VerifyException(
                f"{self.name}: {sizes.query_heads} query heads cannot share "
                f"{sizes.key_heads} key heads"
            )
        super().verify_()
        if self.mask is None:
            return
        mask = shape_of(self.mask)
        if len(mask) > 4 or any(
            have not in (1, want)
            for have, want in zip(mask[::-1], sizes.scores[::-1], strict=False)
        ):
            raise VerifyException(
                f"{self.name}: mask has shape {list(mask)}, which does not broadcast to "
                f"{list(sizes.scores)}"
            )

    def _check(
        self, name: str, value: SSAValue, heads: int, length: int, size: int
    ) -> None:
        batch = self.sizes.batch
        expected = (batch, heads, length, size)
        if self.is_packed:
            expected = (batch, length, heads * size)
        check_shape(self, name, value, expected)


OPS = [AttentionGradOp]
