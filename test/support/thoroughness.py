"""
Decides how much tests try: `make test` tries one case of each kind and a part of the random
ones; `make test-all` tries all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

IS_THOROUGH = bool(os.environ.get("THOROUGH"))
"""Whether `make test-all` runs the tests."""

_PART = 4


def tries(count: int) -> int:
    """Returns how many random cases to try, out of `count` in `make test-all`."""
    return count if IS_THOROUGH else max(2, count // _PART)


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """
    Returns the parameters of a test: of `every` cases, the first one is always tried, and
    the others, which take the same way through the code, in `make test-all`.
    """
    found: list[Any] = []
    for number, case in enumerate(cases):
        marks = () if number % every == 0 else (pytest.mark.slow,)
        if isinstance(case, type(pytest.param())):
            marks = (*case.marks, *marks)
            found.append(pytest.param(*case.values, marks=marks, id=case.id))
        else:
            values = case if isinstance(case, tuple) else (case,)
            found.append(pytest.param(*values, marks=marks))
    return found
