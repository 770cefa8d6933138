"""
Caches in pages against contiguous ones: any pages in any order, for sequences of any
lengths, in the reference and in PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.sharding_harness import Case, sequential
from support.thoroughness import tries

from distir.dialects.train_ops.paged_attention import (
    PagedAttentionOp,
    PagedReadOp,
    PagedWriteOp,
)
from distir.errors import DistIRError
from distir.runtime.layers import paged_attention as pages_of_torch

Array = npt.NDArray[Any]
WIDTH, KEY_HEADS, HEADS = 4, 2, 6


def run(make: Any, *inputs: Array) -> Array:
    (found,) = sequential(Case(make.name, inputs, make=lambda v: make(*v))).results
    return found


def test_pages_hold_what_contiguous_caches_hold() -> None:
    """
    Prompts are written together, padded on the left, then one token of each sequence
    after another. Attention of the newest tokens equals that over the tokens themselves.
    """
    random = np.random.default_rng(0)
    for _ in range(tries(64)):
        size, sequences, pools = (int(random.integers(1, n)) for n in (6, 4, 3))
        batch = sequences * pools
        lengths = random.integers(1, 14, batch)
        prompt, new = int(lengths.max()), int(random.integers(1, 5))
        needed = -(-(lengths + new) // size)
        pages = int(needed.reshape(pools, -1).sum(1).max()) + 1
        table = np.full((batch, int(needed.max()) + 1), -1)
        for pool in range(pools):
            order = iter(random.permutation(pages).tolist())
            for row in range(pool * sequences, (pool + 1) * sequences):
                table[row, : needed[row]] = [next(order) for _ in range(needed[row])]

        shape = (batch, KEY_HEADS, prompt + new, WIDTH)
        tokens = [random.standard_normal(shape).astype(np.float32) for _ in range(2)]
        before = (pools, pages, KEY_HEADS, size, WIDTH)
        caches = [random.standard_normal(before).astype(np.float32) for _ in range(2)]
        padding = prompt - lengths
        steps = [(slice(0, prompt), -padding)]
        steps += [(slice(prompt + i, prompt + i + 1), lengths + i) for i in range(new)]
        for part, first in steps:
            for cache, own in zip(caches, tokens, strict=True):
                written = run(PagedWriteOp, cache, own[:, :, part], table, first)
                given = (cache, own[:, :, part], table, first)
                in_torch = [torch.tensor(value) for value in given]
                changed = pages_of_torch.write(*in_torch, in_place=True)
                assert changed is in_torch[0]
                np.testing.assert_array_equal(changed.numpy(), written)
                cache[:] = written

        q = random.standard_normal((batch, HEADS, 1, WIDTH)).astype(np.float32)
        slots = np.arange(table.shape[1] * size)
        mask = (slots < (lengths + new)[:, None])[:, None, None]
        found = run(PagedAttentionOp, q, *caches, table, mask)
        for row in range(batch):
            k, v = (
                torch.tensor(own[row, :, padding[row] :]).repeat_interleave(3, 0)
                for own in tokens
            )
            expected = torch.nn.functional.scaled_dot_product_attention(
                torch.tensor(q[row]), k, v
            )
            np.testing.assert_allclose(found[row], expected, rtol=1e-5, atol=1e-6)
        read = pages_of_torch.read(torch.tensor(caches[0]), torch.tensor(table))
        np.testing.assert_array_equal(read, run(PagedReadOp, caches[0], table))


def test_a_page_that_no_pool_has_is_an_error() -> None:
    pool, table = np.zeros((1, 3, 2, 2, 4), np.float32), np.array([[0, 3]])
    with pytest.raises(DistIRError, match="names page 3, but each pool has 3 pages"):
        run(PagedReadOp, pool, table)
