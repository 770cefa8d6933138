"""
Counts the CPU seconds of each test file, those of the processes that its tests start
included, and reports the files and tests that take most. Seconds on the clock would tell how
much else the machine does.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FILE_BUDGET, TEST_BUDGET = 20.0, 5.0
"""The CPU seconds that a file, and a test, of `make test` may take."""

_SHOWN = 10
_LONG_S = 2.0
"""
Tests that take as long on the clock are counted one by one, others together with those
before them in their file: to ask takes a few milliseconds.
"""

_PROCESSES = Path("/proc")


def seconds() -> float:
    """
    Returns the CPU seconds of this process, of processes that it waited for and, on Linux,
    of those that it, or one of these, has started and that still run.
    """
    own, children = os.getpid(), dict[int, list[int]]()
    used = dict[int, int]()
    for folder in _PROCESSES.glob("[0-9]*"):
        try:
            # The name of the program, in parentheses, may have spaces.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(folder.name))
        used[int(folder.name)] = sum(map(int, fields[11:15]))
    if own not in used:
        return sum(os.times()[:4])
    ticks, left = 0, [own]
    while left:
        process = left.pop()
        ticks += used[process]
        left += children.get(process, [])
    return ticks / os.sysconf("SC_CLK_TCK")


class CpuSeconds:
    """A plugin of pytest, in a process that tests, or in one that starts workers."""

    def __init__(self) -> None:
        self._files = defaultdict[str, float](float)
        self._tests = dict[str, float]()
        self._before = 0.0

    def pytest_collection_finish(self) -> None:
        self._before = seconds()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        start = time.monotonic()
        result = yield
        is_long = time.monotonic() - start > _LONG_S
        if is_long or nextitem is None or nextitem.path != item.path:
            now = seconds()
            self._files[_file(item)] += now - self._before
            if is_long:
                self._tests[item.nodeid] = now - self._before
            self._before = now
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Sends the seconds of a worker of pytest-xdist to the process that started it."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["files"], output["tests"] = dict(self._files), dict(self._tests)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        output = getattr(node, "workeroutput", {})
        for name, used in output.get("files", {}).items():
            self._files[name] += used
        self._tests |= output.get("tests", {})

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        total = sum(self._files.values())
        if total < FILE_BUDGET:
            return
        terminalreporter.section(f"{total:.0f} CPU seconds")
        for name, used in _most(self._files):
            note = f" (more than {FILE_BUDGET:.0f})" if used > FILE_BUDGET else ""
            terminalreporter.line(f"{used:7.1f}  {name}{note}")
        for name, used in _most(self._tests):
            if used > TEST_BUDGET:
                terminalreporter.line(
                    f"{used:7.1f}  {name} (a test: more than {TEST_BUDGET:.0f})"
                )


def _most(seconds: dict[str, float]) -> list[tuple[str, float]]:
    """Returns the names with most seconds, those first."""
    return sorted(seconds.items(), key=lambda pair: -pair[1])[:_SHOWN]


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
