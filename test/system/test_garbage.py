"""When garbage is collected (`distir.system.garbage`)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Generator

import pytest

from distir.system.garbage import (
    collect_rarely_until_exit,
    lasting_imports,
    one_garbage_collection,
    rare_garbage_collection,
)
from distir.tools import cli


@pytest.fixture(autouse=True)
def unfrozen() -> Generator[None]:
    """The tests' own settings freeze what is loaded, as a script does not."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if frozen:
        gc.freeze()


class Cycle:
    """An object that only a garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_collections_are_rare_inside_and_as_before_behind() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), rare_garbage_collection():
        assert gc.get_threshold()[0] > before[0]
        raise KeyError
    assert gc.get_threshold() == before


@pytest.fixture
def thresholds() -> Generator[tuple[int, int, int]]:
    """The thresholds before the test, which are set again after it."""
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_collections_stay_rare_until_a_process_ends(
    thresholds: tuple[int, int, int],
) -> None:
    collect_rarely_until_exit()
    with rare_garbage_collection():
        pass
    assert gc.get_threshold()[0] > thresholds[0]


@pytest.mark.parametrize("ends", [True, False])
def test_only_the_command_of_the_process_leaves_them_rare(
    ends: bool, thresholds: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that Python code runs is followed by other work."""
    monkeypatch.setattr("sys.argv", ["distir", "--version"])
    with pytest.raises(SystemExit):
        cli.main(None if ends else ["--version"])
    assert (gc.get_threshold()[0] > thresholds[0]) is ends


def test_imported_objects_count_as_old() -> None:
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


def test_garbage_of_the_work_is_collected_at_its_end() -> None:
    old = weakref.ref(Cycle())
    with one_garbage_collection():
        new = weakref.ref(Cycle())
        assert new() is not None
    assert new() is None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None


def test_work_leaves_a_switched_off_collector_alone() -> None:
    gc.disable()
    try:
        with one_garbage_collection():
            new = weakref.ref(Cycle())
        assert new() is not None
        assert not gc.isenabled()
    finally:
        gc.enable()
