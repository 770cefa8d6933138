"""Many small cases in one test: a test by itself costs as much as several of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from support.sharding_harness import Case


def of_each_op(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Returns the cases of each op, by its name."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.name, []).append(case)
    return found


@contextmanager
def named(what: object) -> Iterator[None]:
    """Names the case in the report of a failure inside."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"This is the case {what}.")
        raise
