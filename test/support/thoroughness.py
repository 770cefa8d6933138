"""
Decides how much tests try: `make test` tries one case of each kind and a part of the random
ones; `make test-all` tries all.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

IS_THOROUGH = bool(os.environ.get("THOROUGH"))
"""Whether `make test-all` runs the tests."""

_PART = 16


def tries(count: int) -> int:
    """Returns how many random cases to try, out of `count` in `make test-all`."""
    return count if IS_THOROUGH else max(2, count // _PART)


def _parameter(case: Any, is_slow: bool) -> Any:
    """Returns one case as a parameter set, marked `slow` where that is asked for."""
    marks = (pytest.mark.slow,) if is_slow else ()
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=(*case.marks, *marks), id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=marks)


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """
    Returns the parameters of a test: of `every` cases, the first one is always tried, and
    the others, which take the same way through the code, in `make test-all`.
    """
    return [_parameter(case, n % every != 0) for n, case in enumerate(cases)]


def chosen(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """
    Returns the parameters of a test: `make test` tries those of the cases that are in
    `quick`, `make test-all` all. A quick case that is none of the cases is an error.
    """
    every = list(cases)
    strangers = [case for case in quick if case not in every]
    assert not strangers, f"these are no cases: {strangers}"
    return [_parameter(case, case not in quick) for case in every]


def each_once(*values: Sequence[Any]) -> list[Any]:
    """
    Returns all combinations of some lists of values as the parameters of a test. `make
    test` tries as many as the longest list has, in which each value of every list occurs;
    `make test-all` tries all.
    """
    count = max(map(len, values))
    quick = [tuple(some[n % len(some)] for some in values) for n in range(count)]
    return chosen(product(*values), quick)
