"""
A Triton kernel that draws the elements that dropout keeps. It draws the same bits as
`random_numbers.threefry`, in one kernel instead of about two hundred kernels of
PyTorch. Without Triton, `kept` is None.
"""

import math

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs brings none
    triton = None

_BLOCK = 1024
_LARGEST = 1 << 31
"""
The number of elements from which a part is too large for the kernel, whose positions in
a part are 32-bit integers.
"""
_ROWS = 4
"""The largest number of rows of a layout that the kernel supports."""


def rows_of(local, shape, splits):
    """
    Returns the rows (extent, parts, run, stride, coordinate) by which the kernel
    converts a position in a part, of shape `local`, to a position in the whole tensor,
    of shape `shape`.

    The rows are applied in order. In each row, the remainder of the position by
    `extent` is the place, and the quotient is the position for the next row. An extent
    of 0 keeps the place of the previous row. If `coordinate`, the index of a
    coordinate, is not -1, the place becomes `(place // run * parts + coordinate) * run
    + place % run`. The result is the sum of places times strides.
    """
    shape = shape if splits else local
    rows, extent, stride, inner = [], 1, 1, 1
    for dim in reversed(range(len(local))):
        own = [(i, s) for i, s in enumerate(splits) if s[0] == dim]
        if not own:
            extent, inner = extent * local[dim], inner * shape[dim]
            continue
        if extent > 1:
            rows.append((extent, 1, 1, stride, -1))
        stride = stride * inner
        for count, (index, (_, parts, run)) in enumerate(reversed(own), 1):
            size = local[dim] if count == 1 else 0
            rows.append((size, parts, run, stride if count == len(own) else 0, index))
        extent, stride, inner = 1, stride * shape[dim], 1
    return [*rows, (extent, 1, 1, stride, -1)] if extent > 1 else rows


if triton is None:
    kept = None
else:

    @triton.jit
    def _round(x0, x1, TURN: tl.constexpr):
        x0 = x0 + x1
        return x0, ((x1 << TURN) | (x1 >> (32 - TURN))) ^ x0

    @triton.jit
    def _even(x0, x1):
        x0, x1 = _round(x0, x1, 13)
        x0, x1 = _round(x0, x1, 15)
        x0, x1 = _round(x0, x1, 26)
        return _round(x0, x1, 6)

    @triton.jit
    def _odd(x0, x1):
        x0, x1 = _round(x0, x1, 17)
        x0, x1 = _round(x0, x1, 29)
        x0, x1 = _round(x0, x1, 16)
        return _round(x0, x1, 24)

    @triton.jit
    def _threefry(key0, key1, x0, x1):
        key2 = key0 ^ key1 ^ 0x1BD11BDA
        x0, x1 = _even(x0 + key0, x1 + key1)
        x0, x1 = _odd(x0 + key1, x1 + key2 + 1)
        x0, x1 = _even(x0 + key2, x1 + key0 + 2)
        x0, x1 = _odd(x0 + key0, x1 + key1 + 3)
        x0, x1 = _even(x0 + key1, x1 + key2 + 4)
        return x0 + key2, x1 + key0 + 5

    @triton.jit
    def _row(
        rest,
        place,
        where,
        at,
        EXTENT: tl.constexpr,
        PARTS: tl.constexpr,
        RUN: tl.constexpr,
        STRIDE: tl.constexpr,
        HAS: tl.constexpr,
    ):
        if EXTENT > 0:
            place = rest % EXTENT
            rest = rest // EXTENT
        if HAS:
            block, inside = (place // RUN).to(tl.int64), place % RUN
            place = (block * PARTS + tl.load(at)) * RUN + inside
        if STRIDE > 0:
            where += place.to(tl.int64) * STRIDE
        return rest, place, where

    @triton.jit(
        do_not_specialize=["first_key", "second_key", "threshold", "first", "count"]
    )
    def _kept(
        out,
        counter,
        at0,
        at1,
        at2,
        at3,
        first_key,
        second_key,
        threshold,
        first,
        count,
        ROWS: tl.constexpr,
        E0: tl.constexpr,
        P0: tl.constexpr,
        R0: tl.constexpr,
        S0: tl.constexpr,
        H0: tl.constexpr,
        E1: tl.constexpr,
        P1: tl.constexpr,
        R1: tl.constexpr,
        S1: tl.constexpr,
        H1: tl.constexpr,
        E2: tl.constexpr,
        P2: tl.constexpr,
        R2: tl.constexpr,
        S2: tl.constexpr,
        H2: tl.constexpr,
        E3: tl.constexpr,
        P3: tl.constexpr,
        R3: tl.constexpr,
        S3: tl.constexpr,
        H3: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        rest = (first + index).to(tl.int32)
        place, where = rest, tl.zeros([BLOCK], tl.int64)
        if ROWS > 0:
            rest, place, where = _row(rest, place, where, at0, E0, P0, R0, S0, H0)
        if ROWS > 1:
            rest, place, where = _row(rest, place, where, at1, E1, P1, R1, S1, H1)
        if ROWS > 2:
            rest, place, where = _row(rest, place, where, at2, E2, P2, R2, S2, H2)
        if ROWS > 3:
            rest, place, where = _row(rest, place, where, at3, E3, P3, R3, S3, H3)
        number = tl.load(counter)
        # Keys are plain numbers, without a method `to`, in programs that are compiled.
        key0, key1 = _threefry(
            tl.full((), first_key, tl.uint32),
            tl.full((), second_key, tl.uint32),
            number.to(tl.uint32),
            (number >> 32).to(tl.uint32),
        )
        word, _ = _threefry(
            key0, key1, where.to(tl.uint32), (where >> 32).to(tl.uint32)
        )
        keep = word.to(tl.int64) >= threshold
        tl.store(out + index, keep, mask=index < count)

    def kept(local, within, counter, coordinates, key, threshold, shape, splits):
        """
        Draws the elements that dropout keeps, with one GPU kernel, as `dropout.kept`
        does. Returns one flat tensor of booleans for the elements `within`. Returns
        None if the kernel cannot address the part: it has 2^31 elements or more, or its
        splits need more than four rows of `rows_of`.
        """
        first, last = within
        rows = rows_of(local, shape, splits)
        if len(rows) > _ROWS or math.prod(local) >= _LARGEST:
            return None
        out = torch.empty(last - first, dtype=torch.bool, device=counter.device)
        at = [counter] * _ROWS
        constants = []
        for number, (*numbers, index) in enumerate(rows):
            constants += [*numbers, index >= 0]
            if index >= 0:
                at[number] = torch.as_tensor(coordinates[index]).to(counter.device)
        constants += [0, 1, 1, 0, False] * (_ROWS - len(rows))
        blocks = triton.cdiv(last - first, _BLOCK)
        if blocks:
            _kept[(blocks,)](
                *(out, counter, *at, *key, threshold, first, last - first),
                *(len(rows), *constants, _BLOCK),
            )
        return out
