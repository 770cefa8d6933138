"""The pages of a cache that generation gives to sequences."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distir.runtime.loop.generation import Pages, check
from distir.runtime.runtime import ProgramError, Tensor

TABLE = Tensor("pages", shape=(4, 3), feeds="pages", pages=(2, 4, 8))
"""Two pools of four pages of eight tokens, each shared by two sequences."""


def test_sequences_hold_different_pages_of_their_pool() -> None:
    pages = Pages(TABLE)
    for row, tokens in enumerate((9, 16, 1, 24)):
        pages.hold(row, tokens)
    rows = pages.table
    assert [sum(page >= 0 for page in row) for row in rows] == [2, 2, 1, 3]
    assert all(
        row[len([p for p in row if p >= 0]) :].count(-1) == row.count(-1)
        for row in rows
    )
    for pool in (rows[:2], rows[2:]):
        assert sorted(p for row in pool for p in row if p >= 0) == [0, 1, 2, 3]
    pages.hold(0, 16)
    assert pages.table == rows
    pages.release(1)
    pages.hold(0, 17)
    assert pages.table[1] == [-1, -1, -1]
    assert pages.table[0][:2] == rows[0][:2]
    assert pages.table[0][2] in rows[1]


def test_prompts_that_need_more_pages_than_a_pool_has_are_refused() -> None:
    tokens = Tensor("input_ids", shape=(4, 24), feeds="tokens")
    positions = Tensor("positions", shape=(4,), feeds="positions", limit=24)
    logits = Tensor("logits", shape=(4, 1, 96))
    program = SimpleNamespace(ARGUMENTS=(tokens, positions, TABLE), RESULTS=(logits,))
    programs = SimpleNamespace(prefill=program, decode=program)
    # The last new token needs no place: 16 and 16 tokens are two pages each.
    check([[1] * 14, [1] * 14, [1] * 22], 3, programs)
    # A second batch has all pages again.
    check([[1] * 14, [1] * 14, [1], [1], [1] * 14, [1] * 14], 3, programs)
    message = (
        "from number 0 on with 4 new tokens need 5 pages of 8 tokens in one pool of 4"
    )
    with pytest.raises(ProgramError, match=message):
        check([[1] * 14, [1] * 13], 4, programs)
    with pytest.raises(ProgramError, match="from number 4 on"):
        check([[1]] * 4 + [[1] * 20] * 2, 4, programs)
