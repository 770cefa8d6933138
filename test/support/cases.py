"""Many small cases in one test: a test by itself costs as much as several of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named(what: object) -> Iterator[None]:
    """Names the case in the report of a failure inside."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"This is the case {what}.")
        raise
