"""`distir search --auto`: what a user sees, and the program that it writes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.command_line import failure, succeed, write_program

from distir.errors import DistIRError
from distir.planning.auto.auto import AutoSearch
from distir.planning.plans.plan import Plan
from distir.planning.plans.saved_plan import SavedPlan

TWO = ("--cluster", "dgx2", "--world-size", "2", "--jobs", "1")


def test_the_best_of_all_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # the table of layouts as one
    model, best, out = (tmp_path / name for name in ("m.mlir", "b.mlir", "out.json"))
    write_program(model)
    command = ("search", model, "--auto", *TWO, "--explain")
    done = succeed(*command, "--json", out, "-o", best)
    data = json.loads(out.read_text())
    assert data["finished"] is True
    assert {o["axes"] for o in data["outcomes"]} == {"", "d=2"}
    assert " fastest" in done.output and "runner-up:" in done.output
    assert "chosen layouts" in done.output
    assert "plans are to be judged first" in done.errors
    assert re.search(r"this takes (\d+ to|up to) \d+ seconds? on this", done.errors)
    assert "round 1, " in done.errors and "auto-parallel chose" in done.errors
    simulated = tmp_path / "simulated.json"
    succeed("simulate", best, "--json", simulated)
    seconds = json.loads(simulated.read_text())["step_time_s"]
    assert seconds == data["best"][0]["step_time_s"]
    succeed("check", model, best)


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    model = write_program(tmp_path / "m.mlir")
    for options in (("--explain",), ("--time-limit", "1"), ("--whole", "x")):
        message = failure("search", model, *TWO, *options)
        assert message.startswith(f"error: {options[0]} is of the search with --auto")
    message = failure("search", model, "--auto", *TWO, "--resume", tmp_path / "j")
    assert "--resume is of the grid search" in message


def test_the_best_plan_so_far_is_in_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the moment in which it is found, and if a later step fails."""
    model = write_program(tmp_path / "m.mlir")
    best, plan = tmp_path / "b.mlir", tmp_path / "plan.json"
    told: list[tuple[float, float, float]] = []
    judge = AutoSearch._judge  # pyright: ignore[reportPrivateUsage]

    def judge_and_look(self: AutoSearch, plans: Sequence[Plan]) -> bool:
        went_on = judge(self, plans)
        if self.best is not None:
            simulated = tmp_path / "simulated.json"
            succeed("simulate", best, "--json", simulated)
            seconds = json.loads(simulated.read_text())["step_time_s"]
            told.append((self.best.step_time_s, seconds, SavedPlan.load(plan).time_s))
        return went_on

    monkeypatch.setattr(AutoSearch, "_judge", judge_and_look)
    monkeypatch.setattr(AutoSearch, "_next", fail)
    options = ("-o", best, "--save-plan", plan)
    assert "no memory left" in failure("search", model, "--auto", *TWO, *options)
    assert told and all(a == b == c for a, b, c in told)
    assert "and the search goes on" in best.read_text()
    assert "had not ended" in SavedPlan.load(plan).explain()
    assert not [*tmp_path.glob(".*")]
    monkeypatch.undo()
    succeed("search", model, "--auto", *TWO, *options)
    assert "goes on" not in best.read_text()
    assert "chosen" in SavedPlan.load(plan).explain()


def fail(search: AutoSearch) -> list[Plan]:
    raise DistIRError("no memory left")


def test_a_pipe_gets_one_program(tmp_path: Path) -> None:
    model, pipe = write_program(tmp_path / "m.mlir"), tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        succeed("search", model, "--auto", *TWO, "-o", pipe)
        assert read.result().count("func.func @main") == 1


SLOW_SEARCH = """
import sys, time
from pathlib import Path
from distir.planning.grid.evaluate import Evaluator
from distir.tools.cli import main

evaluate = Evaluator.evaluate

def slowly(self, *arguments):
    if Path(sys.argv[-1]).exists():
        time.sleep(600)
    return evaluate(self, *arguments)

Evaluator.evaluate = slowly
main()
"""
"""Runs `distir`; once the last argument is a file, plans take ten minutes each."""


def test_a_killed_search_leaves_a_whole_program_and_no_process(tmp_path: Path) -> None:
    """The best plan so far is in the file; the processes that judge plans end at once."""
    model, best = write_program(tmp_path / "m.mlir"), tmp_path / "b.mlir"
    options = ("--auto", "--cluster", "dgx2", "--time-limit", "600", "--jobs", "2")
    search = subprocess.Popen(
        [sys.executable, "-c", SLOW_SEARCH, "search", model, *options, "-o", best],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: best.exists() and len(running(search.pid)) == 3)
        assert search.poll() is None
        search.kill()
        search.wait()
        succeed("simulate", best)
        wait_until(lambda: not running(search.pid))
    finally:
        if running(search.pid):
            os.killpg(search.pid, signal.SIGKILL)
        search.wait()


def running(group: int) -> list[str]:
    """Returns the processes of a group that have not ended, as `ps` shows them."""
    command = ("ps", "-A", "-o", "pgid=,stat=,pid=")
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = [row.split() for row in rows.splitlines()]
    return [
        pid
        for of, state, pid in found
        if int(of) == group and not state.startswith("Z")
    ]


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for a condition, and fails after a minute without it."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
