"""Ranks that torchrun starts agree on keys of their own in the store of its agent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from time import sleep

import pytest
from torch._C._distributed_c10d import HashStore, Store

from distir.runtime.communication.meeting import agreed_prefix

LIMIT = timedelta(seconds=20)


def start(store: Store, late: dict[int, float], size: int = 3) -> set[str]:
    """The prefixes that the ranks of one start agree on. Ranks in `late` come after that many seconds."""

    def rank(number: int) -> str:
        sleep(late.get(number, 0.0))
        return agreed_prefix(store, number, size, LIMIT)

    with ThreadPoolExecutor(size) as pool:
        return set(pool.map(rank, range(size)))


@pytest.mark.parametrize("late", [{}, {0: 0.2}, {1: 0.2}, {1: 0.1, 2: 0.3}], ids=str)
def test_each_start_has_keys_of_its_own(late: dict[int, float]) -> None:
    """Rank 0 may see what ranks of an earlier start have left, and begins anew."""
    store = HashStore()
    found = [start(store, {}), start(store, late), start(store, late, 2)]
    assert [len(own) for own in found] == [1, 1, 1]
    assert len(set.union(*found)) == 3


def test_one_rank_needs_no_other() -> None:
    assert agreed_prefix(HashStore(), 0, 1, LIMIT) == "distir/start/1"


def test_a_rank_that_does_not_come() -> None:
    with pytest.raises(RuntimeError, match="rank 1 did not come"):
        agreed_prefix(HashStore(), 0, 2, timedelta(seconds=0.1))
