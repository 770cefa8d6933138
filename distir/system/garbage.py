"""Control over the times of garbage collection."""

from __future__ import annotations

import atexit
import contextlib
import gc
from collections.abc import Generator
from functools import cache

_NEW_OBJECTS = 5_000_000
"""The number of new objects after which a command collects garbage."""


@contextlib.contextmanager
def rare_garbage_collection() -> Generator[None]:
    """
    Returns a context manager within which garbage is rarely collected. It is for
    commands: modules and programs are many objects that live to the end. To search them
    all again and again would take a third of the time, and a tenth of that of imports.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextlib.contextmanager
def no_garbage_collection() -> Generator[None]:
    """
    Returns a context manager that suspends garbage collection. It is for work that
    makes millions of objects and frees few of them before the end. Repeated collections
    would take a third of the time of such work.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def lasting_objects() -> Generator[None]:
    """
    Returns a context manager within which garbage collections pass over the objects
    that exist at its start. Use it for work that repeatedly makes and frees programs: a
    collection then searches these programs, not all modules of the process.
    """
    is_first = not gc.get_freeze_count()
    if is_first:
        gc.freeze()
    try:
        yield
    finally:
        if is_first:
            gc.unfreeze()


@cache
def leave_objects_at_exit() -> None:
    """
    Lets this process end without a last garbage collection, which would search all
    programs in memory. The system frees the memory of an ended process at once.
    """
    atexit.register(gc.freeze)
