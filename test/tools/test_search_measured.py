"""`distir search --measure`: plans that are run on this machine."""

from __future__ import annotations

import functools
import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.command_line import succeed
from xdsl.dialects.builtin import ModuleOp

import distir
from distir.frontends.models.basic import build_mlp
from distir.hardware import load_cluster
from distir.launch import step_times
from distir.launch.packages import OutOfMemory, Spawner
from distir.launch.step_times import StepTimer
from distir.planning.programs import replace_cluster
from distir.planning.rank_correlation import rank_correlation

STEP = ("--layers", "2", "--d-model", "16", "--batch", "8", "--training")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.mlir"
    succeed("build", "mlp", *STEP, "-o", path)
    return path


@pytest.fixture
def ranks(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are timed come from one that has PyTorch loaded already."""
    monkeypatch.setattr(step_times, "timing_spawner", lambda: nullcontext(spawner))


@pytest.mark.usefixtures("ranks")
def test_the_plan_that_is_measured_best_is_chosen(model: Path, tmp_path: Path) -> None:
    best, plan = tmp_path / "best.mlir", tmp_path / "plan.json"
    output = succeed(
        *("search", model, "--cluster", "cpu", "--world-size", "2", "--zero", "0,1"),
        *("--micro-batches", "2", "--measure", "3", "-o", best, "--save-plan", plan),
    ).output
    table = output.split("the 3 fastest, run on this machine\n")[1].splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in table if "batch=" in line]
    measured = [float(row[1]) for row in rows]
    assert measured == sorted(measured, reverse=True)
    assert sorted(row[-1] for row in rows) == ["1", "2", "3"]
    assert -1 <= float(table[-1].rpartition(": ")[2]) <= 1
    assert f"the search chose {rows[0][0]}, the fastest of 3 plans that were run" in (
        best.read_text()
    )
    saved = json.loads(plan.read_text())["result"]
    for option in rows[0][0].split():
        name, value = option.split("=")
        assert str(saved[name]) == value


@pytest.mark.usefixtures("ranks")
def test_what_runs_out_of_memory_is_not_chosen(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def together(timer: StepTimer, folders: list[Path], ranks: int) -> list[float]:
        if any(folder.name == "0" for folder in folders):
            raise OutOfMemory("rank 0 was killed by signal SIGKILL")
        return [float(folder.name) for folder in folders]

    monkeypatch.setattr(StepTimer, "_together", together)
    search = functools.partial(
        distir.search, model, cluster="cpu", world_size=2, zero=(0, 1)
    )
    first, second = search(), search(measure=3)
    assert first.result.plan != second.result.plan


def test_a_killed_rank_ran_out_of_memory(spawner: Spawner, tmp_path: Path) -> None:
    """Linux kills what needs more memory than there is."""
    module = build_mlp(1, 4, 4)
    replace_cluster(module, load_cluster("cpu"))

    class Killed(StepTimer):
        def __enter__(self) -> Killed:
            self._spawner = spawner
            return self

    written = step_times.write_package

    def kills_itself(module: ModuleOp, folder: Path) -> Path:
        written(module, folder)
        program = folder / "program.py"
        program.write_text("import os\nos.kill(os.getpid(), 9)\n" + program.read_text())
        return folder

    with pytest.MonkeyPatch.context() as patch, Killed() as timer:
        patch.setattr(step_times, "write_package", kills_itself)
        assert timer.seconds([module]) == [None]


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3], [10, 30, 90]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert rank_correlation([1, 1, 2], [5, 5, 7]) == pytest.approx(1)
