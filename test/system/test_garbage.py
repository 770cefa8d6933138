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
    collect_rarely_until_exit,
    lasting_imports,
    one_garbage_collection,
    rare_garbage_collection,
)
from distir.tools import cli


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


def collections_stay_rare_until_a_process_ends() -> None:
    before = gc.get_threshold()
    collect_rarely_until_exit()
    with rare_garbage_collection():
        pass
    assert gc.get_threshold()[0] > before[0]


def only_the_command_of_the_process_leaves_them_rare() -> None:
    """A command that Python code runs is followed by other work."""
    before = gc.get_threshold()
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert gc.get_threshold() == before
    sys.argv = ["distir", "--version"]
    with pytest.raises(SystemExit):
        cli.main()
    assert gc.get_threshold()[0] > before[0]


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


def imports_within_work_are_not_searched_at_its_end() -> None:
    """They can be collected later, as all old objects can."""
    with one_garbage_collection():
        with lasting_imports():
            imported = weakref.ref(Cycle())
        new = weakref.ref(Cycle())
    assert imported() is not None and new() is None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert imported() is None


def nothing_is_collected_between_imports_and_their_freezing() -> None:
    """The usual thresholds would search all imported objects once."""
    ages: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        ages.append(info["generation"])

    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.callbacks.append(note)
    try:
        with lasting_imports():
            kept = [[] for _ in range(20_000)]
        assert len(kept) == 20_000 and not ages
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)


CASES = (
    collections_are_rare_inside_and_as_before_behind,
    collections_stay_rare_until_a_process_ends,
    only_the_command_of_the_process_leaves_them_rare,
    imported_objects_count_as_old,
    garbage_of_the_work_is_collected_at_its_end,
    work_leaves_a_switched_off_collector_alone,
    imports_within_work_are_not_searched_at_its_end,
    nothing_is_collected_between_imports_and_their_freezing,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_in_a_process_of_its_own(case: Callable[[], None]) -> None:
    done = subprocess.run(
        [sys.executable, __file__, case.__name__], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    globals()[sys.argv[1]]()
