"""Control over the times of garbage collection."""

from __future__ import annotations

import atexit
import contextlib
import gc
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache

RARE = (5_000_000, 20, 50)
"""
The thresholds of `rare_garbage_collection`. The first is the number of new objects
after which garbage is collected.
"""


@contextlib.contextmanager
def no_garbage_collection() -> Generator[None]:
    """
    Returns a context manager that suspends garbage collection. It is for work that
    makes millions of objects and frees few of them before the end, where repeated
    collections would take a third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def rare_garbage_collection() -> Generator[None]:
    """
    Returns a context manager in which garbage is collected only after millions of new
    objects (`RARE`). It is for work that keeps most of its objects to the end, such as making
    programs and importing modules: repeated searches of these objects would take a
    third of the time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*RARE)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextlib.contextmanager
def lasting_imports() -> Generator[None]:
    """
    Returns a context manager for imports of many modules, whose objects stay until the
    process ends. At the end of the context, the objects count as old, without a search
    for garbage. Within `lasting_objects`, collections pass over them too.
    """
    with rare_garbage_collection():
        yield
        # Here, because the usual thresholds would start a collection at once.
        if _frozen.is_by_us:
            gc.freeze()
        elif not gc.get_freeze_count():
            # The objects of all ages become the permanent generation, then the oldest.
            gc.freeze()
            gc.unfreeze()


@dataclass
class _Frozen:
    """Who froze the objects that are frozen: `lasting_objects`, or other code of the process."""

    is_by_us: bool = False
    is_by_others: bool = False


_frozen = _Frozen()


@contextlib.contextmanager
def lasting_objects() -> Generator[None]:
    """
    Returns a context manager within which garbage collections pass over the objects
    that existed when the context was entered. Use it for work that repeatedly makes and
    frees programs: a collection then searches these programs, not all modules of the
    process.
    """
    is_first = not _frozen.is_by_us and not _frozen.is_by_others
    if is_first:
        # Python counts one by one, which takes 60 ms for all modules of PyTorch. A process
        # with frozen objects, as a rank of a server that forks, is taken to keep some.
        _frozen.is_by_others = bool(gc.get_freeze_count())
        is_first = not _frozen.is_by_others
    if is_first:
        _frozen.is_by_us = True
        gc.freeze()
    try:
        yield
    finally:
        if is_first:
            _frozen.is_by_us = False
            gc.unfreeze()


@contextlib.contextmanager
def one_garbage_collection() -> Generator[None]:
    """
    Returns a context manager for work that makes programs and drops them. At the end of
    the context, garbage is collected among the objects that the work has made.
    """
    with lasting_objects(), rare_garbage_collection():
        yield
        if gc.isenabled():
            gc.collect()


def collect_rarely_until_exit() -> None:
    """
    Makes garbage collections as rare as `rare_garbage_collection` does, until the
    process ends. It is for processes that run one command: at the end of that context,
    a collection would search all objects that the command has made, just before the
    system frees them.
    """
    gc.set_threshold(*RARE)


@cache
def leave_objects_at_exit() -> None:
    """
    Lets this process end without a last garbage collection, which would search all
    programs in memory. The system frees the memory of an ended process at once.
    """
    atexit.register(gc.freeze)
