"""
Fused attention. The module has attention that keeps values for its gradient, causal
attention of tokens in any order, the gradients of both, and an op that merges attention
over different keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from xdsl.dialects.builtin import TensorType, UnitAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import F32, I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    accumulation_type,
    check_element_type,
    check_shape,
    check_type,
)


@dataclass(frozen=True)
class AttentionSizes:
    """
    The sizes of attention. `query_heads` is a multiple of `key_heads`. `head` and
    `value_head` are the numbers of features of one head.
    """

    batch: int
    query_heads: int
    key_heads: int
    queries: int
    keys: int
    head: int
    value_head: int

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """The shape of the scores: [batch, query heads, queries, keys]."""
        return self.batch, self.query_heads, self.queries, self.keys


class FusedAttentionOp(TrainOp):
    """
    Base of fused attention and of its gradient: y = P v with P = softmax(cap(scale * q
    k') + mask). The shapes are

        q: [batch, query heads, queries, head size]
        k: [batch, key heads, keys, head size]
        v: [batch, key heads, keys, value size]
        y: [batch, query heads, queries, value size]

    or, with `q_num_heads` and `kv_num_heads`, `[batch, length, heads * size]`. Each key
    head serves the same number of consecutive query heads. `scale` is by default 1 /
    sqrt(head size). With `softcap` c, cap(s) is c * tanh(s / c), else s. `mask`
    broadcasts to [batch, query heads, queries, keys]. A boolean mask tells which keys a
    query sees; a mask of floats is added to the scores. With `is_causal`, query i sees
    the keys up to i. P is 0 for a query that sees no key.

    With `blocks`, queries and keys are cut into `blocks` equal blocks. A query then
    sees only the keys of the block with the same number, and there is no mask. Blocks
    are contiguous, unless `run` is given. With `run`, positions are dealt out to the
    blocks in turn, `run` at a time.
    """

    COST_CLASS: ClassVar[str] = "attention"

    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    mask = opt_operand_def(TensorType)
    is_causal = opt_prop_def(UnitAttr)
    scale = opt_prop_def(F32)
    softcap = opt_prop_def(F32)
    q_num_heads = opt_prop_def(I64)
    kv_num_heads = opt_prop_def(I64)
    blocks = opt_prop_def(I64)
    run = opt_prop_def(I64)

    @property
    def block_count(self) -> int:
        """The number of blocks; 1 without the property `blocks`."""
        return 1 if self.blocks is None else self.blocks.value.data

    @property
    def run_length(self) -> int | None:
        """
        With `run`, the number of consecutive positions that a block gets at a time;
        None if blocks are contiguous.
        """
        return None if self.run is None else self.run.value.data

    @property
    def is_packed(self) -> bool:
        """Whether heads and features share one dimension."""
        return self.q_num_heads is not None

    @property
    def sizes(self) -> AttentionSizes:
        """The global sizes of batch, heads, sequences and features."""
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
        """The number by which attention scores are multiplied."""
        return (
            1 / sqrt(self.sizes.head) if self.scale is None else self.scale.value.data
        )

    @property
    def cap(self) -> float | None:
        """The bound c of the soft cap c * tanh(s / c), or None without a cap."""
        return None if self.softcap is None else self.softcap.value.data

    def verify_(self) -> None:
        if (self.q_num_heads is None) != (self.kv_num_heads is None):
            raise VerifyException(
                f"{self.name}: give q_num_heads and kv_num_heads together, or neither"
            )
        rank = 3 if self.is_packed else 4
        for name, value in {"q": self.q, "k": self.k, "v": self.v}.items():
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
        if self.cap is not None and not self.cap > 0:
            raise VerifyException(
                f"{self.name}: softcap is {self.cap}, expected a positive number"
            )
        sizes = self.sizes
        self._check("q", self.q, sizes.query_heads, sizes.queries, sizes.head)
        self._check("k", self.k, sizes.key_heads, sizes.keys, sizes.head)
        self._check("v", self.v, sizes.key_heads, sizes.keys, sizes.value_head)
        if not sizes.key_heads or sizes.query_heads % sizes.key_heads:
            raise VerifyException(
                f"{self.name}: {sizes.query_heads} query heads cannot share "
                f"{sizes.key_heads} key heads"
            )
        super().verify_()
        self._verify_blocks()
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

    def _verify_blocks(self) -> None:
        if self.blocks is None and self.run is None:
            return
        if self.blocks is None or self.mask is not None or self.is_causal is not None:
            raise VerifyException(
                f"{self.name}: run needs blocks, and blocks go without mask and is_causal"
            )
        count = self.block_count
        run = 1 if self.run_length is None else self.run_length
        for name, length in {
            "queries": self.sizes.queries,
            "keys": self.sizes.keys,
        }.items():
            if min(count, run) < 1 or length % (count * run):
                runs = "" if self.run is None else f" in runs of {run}"
                raise VerifyException(
                    f"{self.name}: {length} {name} are not {count} equal blocks{runs}"
                )

    def _check(
        self, name: str, value: SSAValue, heads: int, length: int, size: int
    ) -> None:
        batch = self.sizes.batch
        expected = (batch, heads, length, size)
        if self.is_packed:
            expected = (batch, length, heads * size)
        check_shape(self, name, value, expected)

    def check_result(self, name: str, y: SSAValue) -> None:
        """
        Raises VerifyException unless `y` has the shape and element type of the
        attention's result. `name` is the value's name in the message.
        """
        sizes = self.sizes
        check_element_type(self, name, y, element_type(self.q))
        self._check(name, y, sizes.query_heads, sizes.queries, sizes.value_head)

    def check_logsumexp(self, value: SSAValue) -> None:
        """
        Raises VerifyException unless `value` has one number per row of scores, in the
        type in which sums are accumulated.
        """
        expected = TensorType(accumulation_type(self.q), self.sizes.scores[:3])
        check_type(self, "logsumexp", value, expected)


@irdl_op_definition
class AttentionOp(FusedAttentionOp):
    """
    Fused attention: y = P v with P = softmax(cap(scale * q k') + mask). The op computes
    the same as `onnx.Attention`. `FusedAttentionOp` gives the shapes. The second result
    lets the gradient recompute P without another softmax:

        logsumexp: log(sum(exp(cap(scale * q k') + mask)) along keys), 0 for a query that
        sees no key: [batch, query heads, queries], f64 for f64 and f32 for other types.
    """

    name = "train.attention"

    y = result_def(TensorType)
    logsumexp = result_def(TensorType)

    def __init__(
        self,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        mask: SSAValue | None = None,
        **settings: Any,
    ):
        """
        Makes the op from its operands, and from its properties by name. Result types
        are derived.
        """
        y, logsumexp = self.types_of(q, v, **settings)
        super().__init__(*(q, k, v, mask), y=y, logsumexp=logsumexp, **settings)

    @staticmethod
    def types_of(
        q: SSAValue,
        v: SSAValue,
        q_num_heads: int | None = None,
        kv_num_heads: int | None = None,
        **_: Any,
    ) -> tuple[TensorType, TensorType]:
        """
        Returns the types of the results `y` and `logsumexp` of attention, from its
        operands and properties.
        """
        queries, values = shape_of(q), shape_of(v)
        if q_num_heads is None or kv_num_heads is None:
            rows, shape = queries[:3], (*queries[:3], *values[3:])
        else:
            rows = (queries[0], q_num_heads, queries[1])
            shape = (*queries[:2], q_num_heads * (values[2] // kv_num_heads))
        return (
            TensorType(element_type(q), shape),
            TensorType(accumulation_type(q), rows),
        )

    def verify_(self) -> None:
        super().verify_()
        self.check_result("y", self.y)
        self.check_logsumexp(self.logsumexp)


class FusedAttentionGradOp(FusedAttentionOp):
    """
    Base of the gradients of fused attention. `dy` is the gradient of the result `y`,
    and `logsumexp` is the attention's second result.
    """

    COST_CLASS: ClassVar[str] = "attention_gradient"

    dy = operand_def(TensorType)
    y = operand_def(TensorType)
    logsumexp = operand_def(TensorType)
    dq = result_def(TensorType)
    dk = result_def(TensorType)
    dv = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dq": like("q"), "dk": like("k"), "dv": like("v")}

    def verify_(self) -> None:
        super().verify_()
        self.check_result("dy", self.dy)
        self.check_result("y", self.y)
        self.check_logsumexp(self.logsumexp)


@irdl_op_definition
class AttentionGradOp(FusedAttentionGradOp):
    """
    The gradient of `train.attention`, from its results `y` and `logsumexp`. `dy` has
    the type of `y`. A mask of floats gets no gradient here. Without a soft cap,

        P = exp(scale * q k' + mask - logsumexp)
        dv = P' dy, dP = dy v', dS = P * (dP - sum(dy * y) along features)
        dq = scale * dS k, dk = scale * dS' q

    where `dk` and `dv` are sums over the query heads of a key head.
    """

    name = "train.attention_grad"


class CausalAttentionOp(FusedAttentionOp):
    """
    Base of causal attention, and of its gradient, with explicit positions of queries
    and keys in their sequence. A device can thus hold any part of a sequence.

        query_positions: [queries], key_positions: [keys], i64

    A query sees the keys whose positions are not greater than its own.
    `FusedAttentionOp` describes everything else. `is_causal`, which counts positions
    from 0, is not allowed.

    - `step`: only if `blocks` blocks of keys travel around a ring of devices: the
      number of times that the blocks were passed on before this op. At step 0, a device
      has the keys of its queries' own positions. The simulator derives the amount of
      work from `step`. Results depend on the positions alone.
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
    Causal attention by positions: y = P v with P = softmax(cap(scale * q k') + mask)
    over the keys that a query sees, as `CausalAttentionOp` defines them. The second
    result is

        logsumexp: log(sum(exp(cap(scale * q k') + mask)) along these keys), -infinity
        for a query that sees none: [batch, query heads, queries], f64 for f64 and f32
        for other types.
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
        """
        Makes the op from its operands, and from its properties by name. Result types
        are derived.
        """
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
    The gradient of `train.placed_attention`, with the formulas of
    `train.attention_grad`. `y` and `logsumexp` may come from attention over more keys
    than the op's own. In this case, `dq` is only the term that the op's own keys
    contribute to the gradient of the queries.
    """

    name = "train.placed_attention_grad"


@irdl_op_definition
class MergeAttentionOp(TrainOp):
    """
    Merges attention over one set of keys with attention over another set of keys
    (online softmax):

        logsumexp = log(exp(logsumexp_a) + exp(logsumexp_b))
        y = exp(logsumexp_a - logsumexp) y_a + exp(logsumexp_b - logsumexp) y_b

    `y` is [batch, query heads, queries, value size] or [batch, queries, query heads *
    value size]. `logsumexp` is [batch, query heads, queries]. For a query that sees no
    key on either side, `logsumexp` is -infinity and `y` is 0.
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


OPS = [
    AttentionOp,
    AttentionGradOp,
    PlacedAttentionOp,
    PlacedAttentionGradOp,
    MergeAttentionOp,
]
