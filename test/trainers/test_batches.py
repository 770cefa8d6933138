"""The parts of batches, which are those of one process together."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from torch.utils.data import BatchSampler, SequentialSampler

from distir.trainers.batches import PartOfBatches, Place


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("samples", [1, 5, 16, 17, 23])
@pytest.mark.parametrize("drop_last", [False, True])
def test_parts_are_the_batches_of_one_process(
    count: int, samples: int, drop_last: bool
) -> None:
    """Each sample comes once, in order; sizes of parts differ by one at most."""
    size = 2
    order = SequentialSampler(range(samples))
    parts: list[list[Any]] = []
    for rank in range(count):
        own = PartOfBatches(BatchSampler(order, size, drop_last), Place(rank, count))
        parts.append(list(own))
        assert len(own) == len(parts[-1])
    whole = BatchSampler(order, size * count, drop_last)
    together = [list(chain(*batch)) for batch in zip(*parts, strict=True)]
    assert together == list(whole)
    for batch in zip(*parts, strict=True):
        sizes = [len(part) for part in batch]
        assert max(sizes) - min(sizes) <= 1
