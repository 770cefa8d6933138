"""
Lets every test import the helper modules that lie in this folder, gives all processes that
test one folder of exported models, and takes the time limit off Hypothesis' examples: how
long one takes depends on what else the machine does.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from distir.launch.packages import Spawner

# The processes that test, or ranks, share the cores; set before NumPy and torch are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Commands print as into a pipe, whatever terminal the tests, or xdist's workers, say they have.
os.environ.pop("COLUMNS", None)
sys.path.insert(0, str(Path(__file__).parent))
from support.compiled_once import compile_texts_once
from support.cpu_seconds import CpuSeconds
from support.thoroughness import tries

from distir.tools.reports import reporting

# What a command prints does not depend on how busy the machine is.
reporting.FIRST_LINE_AFTER = 86_400.0
compile_texts_once()
settings.register_profile("distir", deadline=None, max_examples=tries(100))
settings.load_profile("distir")


MODELS = "DISTIR_TEST_MODELS"
"""As `support.models` reads it, which imports torch."""


LOADED_FOR_RANKS = (
    "numpy.random",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.onnx",
)


def pytest_configure(config: pytest.Config) -> None:
    """
    Makes the folder of exported models, which pytest's workers find in their environment,
    has the CPU seconds of test files counted, and hides GPUs from all tests but those that need one (`-m gpu`): ranks are forked from
    processes that have used PyTorch, which CUDA does not allow, and there may be more of
    them than GPUs.
    """
    config.pluginmanager.register(CpuSeconds(), "cpu seconds")
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if MODELS not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="distir-test-models-")
        os.environ[MODELS] = folder.name
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(functools.partial(os.environ.__delitem__, MODELS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Sorts the tests by what they need that takes long to start or to make, so that one worker
    has most of those that need the same: first tests whose ranks are forked from
    `support.ranks`, then those with ranks of a `spawner`, then those with PyTorch's modules,
    whose exports and steps are kept in a process. What needs nothing comes last, for
    workers to take from each other, as it takes little time.
    """
    items.sort(key=_what_is_needed)


def _what_is_needed(item: pytest.Item) -> int:
    """Returns the place of a test in the order of `pytest_collection_modifyitems`."""
    module = getattr(item, "module", None)
    if module is not None and _imports(module, "run_ranks"):
        return 0
    if "spawner" in getattr(item, "fixturenames", ()):
        return 1
    return 2 if module is not None and _imports(module, "torch") else 3


@functools.cache
def _imports(module: ModuleType, name: str) -> bool:
    """Whether a test file imports something of that name, or something of a file that does."""
    sources = {getattr(value, "__module__", None) for value in vars(module).values()}
    files = [sys.modules[source] for source in sources if source in sys.modules]
    return any(name in vars(file) for file in (module, *files))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """
    Ends a process group that a test left in this process, and has the test fail: later
    tests fork ranks from it, which would begin with that group.

    Collects the garbage of a file behind its last test. What is left then stays, such as
    programs that are cached: a collection that looked at all of it would take seconds.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    module = sys.modules.get("torch.distributed")
    if module is not None and module.is_available() and module.is_initialized():
        module.destroy_process_group()
        pytest.fail(f"{item.nodeid} left a process group in the process of the tests")


def pytest_collection_finish() -> None:
    """
    Less work behind the scenes: the garbage collector looks for cycles less often, and not
    among what is loaded; PyTorch's exporter parses the 500 functions of its library once
    instead of for each model, which is half of the time of a small one.
    """
    gc.freeze()
    gc.set_threshold(1_500_000, 10, 10)
    if "distir.frontends.torch.importer" in sys.modules:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        read = functools.cache(ONNXRegistry.from_torchlib)
        ONNXRegistry.from_torchlib = staticmethod(read)  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def spawner() -> Iterator[Spawner]:
    """
    One process with PyTorch loaded, which forks the ranks of every test. What packages
    import of it, above all for attention, would be a second or two of each rank.
    """
    from distir.launch.packages import Spawner

    with Spawner() as running:
        running.submit({"ranks": 0, "imports": LOADED_FOR_RANKS})
        yield running


@pytest.fixture
def shared_ranks(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    """`distir run` and `distir lower` have their ranks from that process, and load no PyTorch."""
    from distir.launch import memory, packages

    run = functools.partial(packages.run_package, spawner=spawner)
    monkeypatch.setattr(packages, "run_package", run)
    count = functools.partial(memory.count_memory, spawner=spawner)
    monkeypatch.setattr(memory, "count_memory", count)
