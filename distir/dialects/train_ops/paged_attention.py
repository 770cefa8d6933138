"""
Caches of keys and values in pages. A pool holds pages of tokens, and a table names the
pages of each sequence, so that sequences of different lengths share one memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from xdsl.dialects.builtin import IntegerType, TensorType, i1, i64
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import F32, TrainOp, Types, like
from distir.dialects.train_ops.checks import check_element_type, check_type


@dataclass(frozen=True)
class PageSizes:
    """
    The sizes of a cache in pages: `pools` pools of `pages` pages each, `size` tokens in
    a page, and `heads` heads of `width` features. For each of `batch` sequences, the
    table names `columns` pages.
    """

    pools: int
    pages: int
    heads: int
    size: int
    width: int
    batch: int
    columns: int

    @property
    def sequences(self) -> int:
        """The number of sequences that share a pool."""
        return self.batch // self.pools

    @property
    def slots(self) -> int:
        """
        The number of tokens that the pages in a sequence's row of the table can hold.
        """
        return self.columns * self.size

    @property
    def used(self) -> int:
        """
        The number of pages of a pool that sequences can fill: the pages that their
        tables name, but at most the pages of the pool.
        """
        return min(self.sequences * self.columns, self.pages)


class PagedOp(TrainOp):
    """
    Base of the ops on a cache in pages. The shapes are

        pool:  [pools, pages, heads, page size, width]
        table: [batch, columns], i64

    The sequences are divided over the pools evenly and in order. Token n of sequence b
    is in slot n % page size of page table[b, n // page size] of its pool. A row of the
    table thus names pages of one pool only, and a split of pools splits sequences with
    them. A negative entry of the table is no page: the op writes nothing to it, and
    reads page 0 in its place, so that a mask must hide these tokens.
    """

    POOL: ClassVar[tuple[str, ...]] = ("pools", "pages", "heads", "page size", "width")
    """The dimensions of a pool."""

    LEAST: ClassVar[int] = len(POOL)
    """The number of these dimensions that a pool must have."""

    def sizes_of(self, name: str, pool: SSAValue, pages: SSAValue) -> PageSizes:
        """
        Returns the sizes of the cache in `pool`, the operand `name`, with the table
        `pages`. Raises VerifyException if the types of `pool` and `pages` do not fit
        together.
        """
        check_element_type(self, "table", pages, i64)
        shape, table = shape_of(pool), shape_of(pages)
        has_rank = self.LEAST <= len(shape) <= len(self.POOL)
        if not has_rank or len(table) != 2 or 0 in (*shape, *table):
            raise VerifyException(
                f"{self.name}: {name} has shape {list(shape)} and the table "
                f"{list(table)}; expected [{', '.join(self.POOL)}] and [batch, columns]"
            )
        if table[0] % shape[0]:
            raise VerifyException(
                f"{self.name}: {table[0]} sequences cannot be divided over {shape[0]} pools"
            )
        sizes = [*shape, *[1] * (len(self.POOL) - len(shape)), *table]
        return PageSizes(*sizes)


@irdl_op_definition
class PagedWriteOp(PagedOp):
    """
    Writes new tokens to the pages of their sequences. `new` is [batch, heads, tokens,
    width]; its token t of sequence b is token first[b] + t of the sequence. `first` is
    [batch], i64. Tokens with a negative number, which are padding, and tokens without a
    page are not written. Two sequences must not write to the same page. Without the
    dimension of widths, in `pool` and `new`, each head has one number per token, such as
    the scale of a row of 8 bits.
    """

    name = "train.paged_write"
    FACTORS: ClassVar[str] = (
        "[p, b, h, s, *k], [p r, h, t, *k], [p r, c], [p r] -> [p, b, h, s, *k] "
        "keep r b s t c linear 0+1"
    )
    LEAST: ClassVar[int] = 4
    IS_CACHE_WRITE: ClassVar[bool] = True
    TYPES: ClassVar[Types] = {"result": like("pool")}

    pool = operand_def(TensorType)
    new = operand_def(TensorType)
    table = operand_def(TensorType)
    first = operand_def(TensorType)
    result = result_def(TensorType)

    @property
    def sizes(self) -> PageSizes:
        """The sizes of the cache."""
        return self.sizes_of("pool", self.pool, self.table)

    def verify_(self) -> None:
        super().verify_()
        sizes, new = self.sizes, shape_of(self.new)
        widths = shape_of(self.pool)[4:]
        expected = (sizes.batch, sizes.heads, *widths)
        if len(new) != len(expected) + 1 or (*new[:2], *new[3:]) != expected:
            wanted = ", ".join(map(str, (*expected[:2], "tokens", *widths)))
            raise VerifyException(
                f"{self.name}: new has shape {list(new)}; expected [{wanted}]"
            )
        check_element_type(self, "new", self.new, element_type(self.pool))
        check_type(self, "first", self.first, TensorType(i64, [sizes.batch]))


@irdl_op_definition
class PagedReadOp(PagedOp):
    """
    Reads the pages of each sequence in the order of its tokens: [batch, heads, columns *
    page size, width].
    """

    name = "train.paged_read"
    FACTORS: ClassVar[str] = (
        "[p, b, h, s, k], [p r, c] -> [p r, h, c s, k] keep r b s c linear 0"
    )

    pool = operand_def(TensorType)
    table = operand_def(TensorType)
    result = result_def(TensorType)

    def __init__(self, pool: SSAValue, table: SSAValue):
        """Makes the op. Its result type is derived from the operands."""
        _, _, heads, size, width = shape_of(pool)
        batch, columns = shape_of(table)
        shape = (batch, heads, columns * size, width)
        super().__init__(pool, table, result=TensorType(element_type(pool), shape))

    @property
    def sizes(self) -> PageSizes:
        """The sizes of the cache."""
        return self.sizes_of("pool", self.pool, self.table)

    def verify_(self) -> None:
        super().verify_()
        sizes = self.sizes
        shape = (sizes.batch, sizes.heads, sizes.slots, sizes.width)
        expected = TensorType(element_type(self.pool), shape)
        check_type(self, "result", self.result, expected)


@irdl_op_definition
class PagedAttentionOp(PagedOp):
    """
    Attention that reads keys and values through a table of pages: y = P v with P =
    softmax(scale * q k' + mask), where k and v are the tokens of the pages in order.

        q: [batch, query heads, queries, head size]
        keys: [pools, pages, key heads, page size, head size]
        values: [pools, pages, key heads, page size, value size]
        mask: [batch, 1, queries, columns * page size]
        y: [batch, query heads, queries, value size]

    Each key head serves the same number of consecutive query heads. `scale` is by
    default 1 / sqrt(head size). A boolean mask tells which tokens a query sees; a mask
    of floats is added to the scores. y is 0 for a query that sees no token.
    """

    name = "train.paged_attention"
    COST_CLASS: ClassVar[str] = "attention"

    q = operand_def(TensorType)
    keys = operand_def(TensorType)
    values = operand_def(TensorType)
    table = operand_def(TensorType)
    mask = operand_def(TensorType)
    scale = opt_prop_def(F32)
    y = result_def(TensorType)

    def __init__(
        self,
        q: SSAValue,
        keys: SSAValue,
        values: SSAValue,
        table: SSAValue,
        mask: SSAValue,
        scale: float | None = None,
    ):
        """Makes the op. Its result type is derived from the operands."""
        shape = (*shape_of(q)[:3], shape_of(values)[4])
        y = TensorType(element_type(q), shape)
        super().__init__(q, keys, values, table, mask, y=y, scale=scale)

    @property
    def sizes(self) -> PageSizes:
        """The sizes of the cache of keys."""
        return self.sizes_of("keys", self.keys, self.table)

    @property
    def factor(self) -> float:
        """The number by which scores are multiplied."""
        if self.scale is not None:
            return self.scale.value.data
        return 1 / sqrt(self.sizes.width)

    @property
    def flops(self) -> int:
        """
        The number of floating-point operations of the two products, with keys and with
        values, over the pages that sequences can fill (`PageSizes.used`).
        """
        sizes = self.sizes
        _, heads, queries, width = shape_of(self.q)
        tokens = sizes.pools * sizes.used * sizes.size
        return 2 * heads * queries * tokens * (width + shape_of(self.values)[4])

    def verify_(self) -> None:
        super().verify_()
        sizes, q, values = self.sizes, shape_of(self.q), shape_of(self.values)
        if len(values) != 5 or values[:4] != shape_of(self.keys)[:4]:
            raise VerifyException(
                f"{self.name}: keys have shape {list(shape_of(self.keys))} and values "
                f"{list(values)}; expected the same pools, pages, heads and page size"
            )
        if len(q) != 4 or q[0] != sizes.batch or q[3] != sizes.width:
            raise VerifyException(
                f"{self.name}: q has shape {list(q)}; expected [{sizes.batch}, heads, "
                f"queries, {sizes.width}]"
            )
        if not sizes.heads or q[1] % sizes.heads:
            raise VerifyException(
                f"{self.name}: {q[1]} query heads cannot share {sizes.heads} key heads"
            )
        for name, value in {"keys": self.keys, "values": self.values}.items():
            check_element_type(self, name, value, element_type(self.q))
        mask = element_type(self.mask)
        if isinstance(mask, IntegerType) and mask != i1:
            raise VerifyException(
                f"{self.name}: mask has elements of type {mask}, expected i1 or floats"
            )
        shape = (sizes.batch, 1, q[2], sizes.slots)
        check_type(self, "mask", self.mask, TensorType(mask, shape))
        y = TensorType(element_type(self.q), (*q[:3], values[4]))
        check_type(self, "y", self.y, y)


OPS = [PagedWriteOp, PagedReadOp, PagedAttentionOp]
