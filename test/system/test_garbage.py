"""
When garbage is collected (`distir.system.garbage`). Everything runs in a process of its own:
in this one the tests' settings freeze what is loaded, as a script does not, and a collection
of all of it takes seconds.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable

import pytest

from distir.system.garbage import (
    lasting_imports,
    one_garbage_collection,
    rare_garbage_collection,
)


class Cycle:
    """An object that only a garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


def collections_are_rare_inside_and_as_before_behind() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), rare_garbage_collection():
        assert gc.get_threshold()[0] > before[0]
        raise KeyError
    assert gc.get_threshold() == before


def imported_objects_count_as_old() -> None:
    """Objects stay collectable, but not as young ones."""
    with lasting_imports():
        cycle = Cycle()
    assert gc.get_freeze_count() == 0
    assert not any(each is cycle for each in gc.get_objects(generation=0))
    assert any(each is cycle for each in gc.get_objects(generation=2))
    seen = weakref.ref(cycle)
    del cycle
    gc.collect()
    assert seen() is None


def garbage_of_the_work_is_collected_at_its_end() -> None:
    old = weakref.ref(Cycle())
    with one_garbage_collection():
        new = weakref.ref(Cycle())
        assert new() is not None
    assert new() is None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None


def work_leaves_a_switched_off_collector_alone() -> None:
    gc.disable()
    try:
        with one_garbage_collection():
            new = weakref.ref(Cycle())
        assert new() is not None
        assert not gc.isenabled()
    finally:
        gc.enable()


CASES = (
    collections_are_rare_inside_and_as_before_behind,
    imported_objects_count_as_old,
    garbage_of_the_work_is_collected_at_its_end,
    work_leaves_a_switched_off_collector_alone,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_in_a_process_of_its_own(case: Callable[[], None]) -> None:
    done = subprocess.run(
        [sys.executable, __file__, case.__name__], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    globals()[sys.argv[1]]()
