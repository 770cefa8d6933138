"""Python functions have the options of the commands that do more than return a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import succeed

import distir

MLP: dict[str, Any] = dict(layers=2, d_model=16, batch=8)
SPLIT: dict[str, Any] = dict(cluster="cpu", d=2, t=2)


def test_a_package_evaluates_and_is_compiled_as_by_the_command(tmp_path: Path) -> None:
    path, theirs, ours = (tmp_path / n for n in ("d.mlir", "a", "b"))
    distir.distribute(distir.build("mlp", **MLP, training=True), **SPLIT).save(path)
    succeed("lower", path, "-o", theirs, "--evaluation", "--compile")
    made = distir.lower(path, ours, evaluation=True, compile=True)
    texts = [
        {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*.*")}
        for folder in (theirs, ours)
    ]
    assert texts[0] == texts[1] and Path("program.py") in texts[0]
    plain = distir.lower(path, tmp_path / "c")
    assert len(list(plain.folder.rglob("*.*"))) < len(texts[0])
    assert plain.memory == made.memory == ()


def test_the_memory_of_a_package_is_counted(tmp_path: Path) -> None:
    program = distir.distribute(distir.build("mlp", **MLP), **SPLIT)
    made = distir.lower(program, tmp_path / "package", check_memory=True)
    simulated = distir.simulate(program)
    (found,) = made.memory
    assert found.ranks == (0, 1, 2, 3)
    assert found.simulated == simulated.memory_bytes
    assert 0.5 < found.counted / found.simulated < 2


def test_a_difference_is_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    first, second, theirs, ours = (
        tmp_path / n for n in ("a.mlir", "b.mlir", "a.json", "b.json")
    )
    program = distir.build("mlp", **MLP)
    distir.distribute(program, **SPLIT).save(first)
    distir.distribute(program, cluster="cpu", d=4).save(second)
    printed = succeed("simulate", "--diff", first, second, "--json", theirs).output
    found = distir.simulate(first).difference(distir.simulate(second))
    found.save(ours)
    assert ours.read_text() == theirs.read_text()
    assert "a.mlir" in str(found) and "difference" in found._repr_html_()  # pyright: ignore[reportPrivateUsage]
    lines = [" ".join(line.split()) for line in str(found).splitlines()]
    assert lines[1:2] == [" ".join(line.split()) for line in printed.splitlines()[1:2]]
    longer = distir.simulate(second).step_time_s - distir.simulate(first).step_time_s
    assert found.step_time_s == pytest.approx(longer)
    assert json.loads(ours.read_text())


SCRIPT = """
def schedule(s):
    s["layers.*"].first(s.knob("ratio", [0.0, 0.5])).recompute("full")
"""

STEP: dict[str, Any] = dict(training=True, loss="mse", optimizer="sgd")


def test_a_tuning_is_that_of_the_command(tmp_path: Path) -> None:
    model, script, best = (tmp_path / n for n in ("m.mlir", "s.py", "best.mlir"))
    program = distir.build("mlp", **MLP)
    program.save(model)
    script.write_text(SCRIPT)
    succeed(
        *("schedule", model, script, "--tune", "exhaustive", "--cluster", "cpu"),
        *("--world-size", "2", "--degrees", "2,1,1", "--jobs", "1", "-o", best),
        *("--training", "--loss", "mse", "--optimizer", "sgd"),
    )
    grid: dict[str, Any] = dict(cluster="cpu", world_size=2, degrees=[(2, 1, 1)])
    found = distir.schedule(program, script, tune="exhaustive", jobs=1, **grid, **STEP)
    assert found.tuned is not None and len(found.tuned.tuner.trials) == 2
    assert found.tuned.best.plan.d == 2 and "ratio" in dict(found.tuned.best.chosen)
    found.save(tmp_path / "ours.mlir")
    assert (tmp_path / "ours.mlir").read_text() == best.read_text()
    few = distir.schedule(
        program, script, tune=["descent", 1], jobs=1, **grid, **STEP
    ).tuned
    assert few is not None and len(few.tuner.trials) == 1
    larger = distir.build("mlp", **MLP | {"batch": 16})
    both = distir.schedule(
        program, script, also=[larger], tune="exhaustive", jobs=1, **grid, **STEP
    ).tuned
    assert both is not None and len(both.tuner.trials) == 4
    with pytest.raises(distir.DistIRError, match="also is of use with tune only"):
        distir.schedule(program, script, also=[larger])


def test_a_schedule_is_verified(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(SCRIPT)
    program = distir.build("mlp", **MLP)
    plain = distir.schedule(program, script, set={"ratio": 0.5})
    assert plain.check is None and plain.tuned is None
    found = distir.schedule(program, script, set={"ratio": 0.5}, verify=True)
    assert found.check is not None and not found.check.is_step
    assert all(output.within for output in found.check.outputs)
    assert str(found) == str(plain)
    step = distir.schedule(program, script, set={"ratio": 0.5}, verify=True, **STEP)
    assert step.check is not None and step.check.is_step
    assert len(step.check.outputs) > len(found.check.outputs) > 0
    with pytest.raises(distir.DistIRError, match="-verify only"):
        distir.schedule(program, script, kernels=script)


def test_all_results_of_a_search(tmp_path: Path) -> None:
    model, theirs, ours = (tmp_path / n for n in ("m.mlir", "a.json", "b.json"))
    program = distir.build("mlp", **MLP, training=True)
    program.save(model)
    succeed(
        *("search", model, "--cluster", "dgx2", "--world-size", "2", "--jobs", "1"),
        *("--zero", "0,1", "--json", theirs),
    )
    plan = distir.search(program, cluster="dgx2", world_size=2, jobs=1, zero=[0, 1])
    plan.results.save(ours)
    assert ours.read_text() == theirs.read_text()
    assert plan.results.finished and plan.results.ranked[0] == plan.result
    assert len(plan.results.results) > len(plan.results.pareto_front) > 0
    plan.save(tmp_path / "plan.json")
    with pytest.raises(distir.DistIRError, match="comes from a file"):
        _ = distir.Plan.load(tmp_path / "plan.json").results
