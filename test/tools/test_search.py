"""`distir search`: what a user sees, and the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.command_line import distir, failure, succeed, write_program
from support.interrupts import interrupt_after

from distir.planning.grid import (
    Evaluator,
    GridPlan,
    Impossible,
    Plan,
    Result,
    Simulated,
)
from distir.tools.reports.pareto_plot import pareto_plot

GRID = ("--cluster", "dgx2", "--world-size", "2", "--jobs", "1")
PLAN = ("--degrees", "1,2,1")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_program(tmp_path / "model.mlir")


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The configurations that were evaluated so far."""
    found: list[Plan] = []
    original = Evaluator.evaluate

    def evaluate(
        self: Evaluator, configuration: Plan, known: Simulated | None = None
    ) -> Result:
        found.append(configuration)
        return original(self, configuration, known)

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    return found


def test_search(tmp_path: Path, model: Path) -> None:
    """The table's best is the JSON's, the note's and that of the program it writes."""
    out, best = tmp_path / "out.json", tmp_path / "best.mlir"
    done = succeed("search", model, *GRID, "--top", "2", "--json", out, "-o", best)
    data = json.loads(out.read_text())
    assert data["finished"] is True
    # 2 x 1 x 1, 1 x 2 x 1, and 1 x 1 x 2 with k = 2, 4 and 8.
    assert len(data["outcomes"]) == 5
    assert "5 configurations: 5 fit, 0 need more memory, 0 are not possible" in (
        done.output
    )
    assert "the 2 fastest" in done.output and "Pareto front" in done.output
    first = data["best"][0]
    assert first == max(data["outcomes"], key=lambda o: o["throughput_samples_per_s"])
    assert data["pareto_front"][0] == first
    named = f"batch=8 d={first['d']} t={first['t']} p={first['p']} k={first['k']}"
    assert f"chose {named}" in done.errors
    simulated = tmp_path / "simulated.json"
    succeed("simulate", best, "--json", simulated)
    assert json.loads(simulated.read_text())["step_time_s"] == first["step_time_s"]
    succeed("check", model, best)


def test_fewer_devices_than_the_cluster_has(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out.json"
    options = ("--cluster", "dgx2", "--devices", "2", "--jobs", "1")
    succeed("search", model, *options, "--json", out)
    degrees = [
        (o["d"], o["t"], o["p"]) for o in json.loads(out.read_text())["outcomes"]
    ]
    assert set(degrees) == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}


def test_several_sizes_of_the_batch(tmp_path: Path, model: Path) -> None:
    larger = tmp_path / "larger.mlir"
    larger.write_text(model.read_text().replace("tensor<8x", "tensor<64x"))
    out, best = tmp_path / "out.json", tmp_path / "best.mlir"
    command = (
        "search",
        model,
        larger,
        *GRID,
        "--degrees",
        "2,1,1",
        "--degrees",
        "1,1,1",
    )
    succeed(*command, "--json", out, "-o", best)
    data = json.loads(out.read_text())
    assert {o["batch"] for o in data["outcomes"]} == {8, 64}
    assert data["best"][0]["batch"] == 64
    succeed("check", larger, best)
    message = failure("search", model, model, *GRID)
    assert message.startswith("error: search: two of the programs have a batch of 8")


def test_resuming(tmp_path: Path, model: Path, evaluated: list[Plan]) -> None:
    journal, out = tmp_path / "journal.jsonl", tmp_path / "out.json"
    command = ("search", model, *GRID, "--resume", journal, "--json", out)
    first = succeed(*command)
    data = json.loads(out.read_text())
    assert len(evaluated) == 5
    evaluated.clear()
    assert succeed(*command).output == first.output
    assert evaluated == []
    assert json.loads(out.read_text()) == data
    # The second half is missing; other configurations in it do not matter.
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:3]))
    succeed(*command, "--degrees", "1,2,1", "--degrees", "2,1,1", "--degrees", "1,1,2")
    assert len(evaluated) == 3
    assert json.loads(out.read_text())["best"] == data["best"]
    message = failure("search", model, *GRID, "--devices", "32", "--resume", journal)
    assert "journal.jsonl cannot be resumed" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step_time_s", "soon"),
        ("k", 1.5),
        ("error", None),
        ("overlap", 1),
        ("batch", [8]),
    ],
)
def test_a_journal_whose_fields_are_of_another_kind(
    tmp_path: Path, model: Path, name: str, value: object
) -> None:
    journal = tmp_path / "journal.jsonl"
    command = ("search", model, *GRID, "--resume", journal)
    succeed(*command)
    first, *lines = journal.read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), name: value})
    journal.write_text("\n".join([first, *lines, ""]))
    message = failure(*command)
    assert "it is not the journal of a search" in message


@pytest.mark.parametrize("option", ["--json", "--plot", "--save-plan", "-o"])
def test_folders_are_checked_before_the_search(model: Path, option: str) -> None:
    words = ("search", model, *GRID, option, "/nowhere/out")
    assert f"{option}: there is no folder /nowhere" in failure(*words, code=2)


def test_an_interrupt_leaves_the_best_so_far(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = tmp_path / "journal.jsonl", tmp_path / "out.json"
    plot = tmp_path / "out.svg"
    left = interrupt_after(monkeypatch, 3)
    command = ("search", model, *GRID, "--resume", journal, "--json", out)
    best, plan = tmp_path / "best.mlir", tmp_path / "plan.json"
    done = distir(*command, "--plot", plot, "-o", best, "--save-plan", plan)
    assert done.code == 130
    assert "devices of @dgx2" in succeed("simulate", best).output
    assert plan.exists()
    assert "interrupted after 3 of 5 configurations; --resume goes on" in done.errors
    assert "the 3 fastest" in done.output
    data = json.loads(out.read_text())
    assert data["finished"] is False and len(data["outcomes"]) == 3
    assert plot.exists()
    left[0] = 2
    succeed(*command)
    assert left == [0] and len(json.loads(out.read_text())["outcomes"]) == 5


def test_nothing_fits(tmp_path: Path, model: Path) -> None:
    """The message says how much memory would do."""
    cluster = tmp_path / "small.mlir"
    text = (Path(__file__).parents[2] / "distir/hardware/dgx2.mlir").read_text()
    assert "memory = 32000000000" in text
    cluster.write_text(text.replace("memory = 32000000000", "memory = 1000"))
    out = tmp_path / "out.json"
    command = ("search", model, *GRID, "--json", out, "-o", tmp_path / "best.mlir")
    message = failure(*command, "--cluster", cluster)
    least = min(
        o["reserved_memory_bytes"] for o in json.loads(out.read_text())["outcomes"]
    )
    assert f"needs {least / 1e9:.4g} GB on a device that has 1e-06 GB" in message
    assert not (tmp_path / "best.mlir").exists()


def test_what_is_not_possible(model: Path) -> None:
    done = succeed("search", model, *GRID, "--degrees", "1,2,1", "--degrees", "3,1,1")
    assert "1 are not possible" in done.output
    assert (
        "such as batch=8 d=3" in done.errors and "evenly over axis 'd'" in done.errors
    )


def test_a_training_step(tmp_path: Path) -> None:
    model, best = tmp_path / "train.mlir", tmp_path / "best.mlir"
    succeed(
        "build", "mlp", "--layers", "3", "--d-model", "8", "--batch", "8",
        "--training", "--optimizer", "adam", "-o", model,
    )  # fmt: skip
    out = tmp_path / "out.json"
    succeed(
        "search", model, *GRID, "--micro-batches", "1,2", "--zero", "0,1,3",
        "--checkpoint", "none,full", "--schedules", "1f1b,gpipe",
        "--json", out, "-o", best,
    )  # fmt: skip
    outcomes = json.loads(out.read_text())["outcomes"]
    assert {o["zero"] for o in outcomes if o["d"] == 2} == {0, 1, 3}
    assert {o["schedule"] for o in outcomes if o["p"] == 2} == {"1f1b", "gpipe"}
    assert {o["checkpoint"] for o in outcomes} == {"none", "full"}
    succeed("check", model, best)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--schedules", "gpip"), "there is no pipeline schedule 'gpip'"),
        (("--checkpoint", "all"), "there is no checkpoint policy 'all'"),
        (("--zero", "1"), "are for training steps"),
        (("--world-size", "64"), "none of the"),
        (("--degrees", "16,1,1"), "the grid is empty"),
        (("--resume", "/nowhere/out.jsonl"), "cannot use the file /nowhere/out.jsonl"),
    ],
)
def test_bad_options(model: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in failure("search", model, *GRID, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--degrees", "2,2"),
        ("--zero", "4"),
        ("--micro-batches", "0"),
        ("--schedules", ","),
    ],
)
def test_options_that_cannot_be_read(model: Path, arguments: tuple[str, ...]) -> None:
    assert arguments[0] in failure("search", model, *GRID, *arguments, code=2)


def test_plot(tmp_path: Path, model: Path) -> None:
    """One dot for each outcome, the Pareto front marked; readable without a network."""
    plot, out = tmp_path / "out.svg", tmp_path / "out.json"
    succeed("search", model, *GRID, "--plot", plot, "--json", out)
    root = ElementTree.parse(plot).getroot()
    data = json.loads(out.read_text())
    dots = [dot.get("class") for dot in root.iter(f"{SVG}circle")]
    assert len(dots) == len(data["outcomes"])
    assert dots.count("front") == len(data["pareto_front"])
    assert "http" not in plot.read_text().replace("http://www.w3.org/2000/svg", "")


def test_plot_keeps_to_its_frame() -> None:
    """Faster is higher, larger is further right; what does not fit is grey."""
    outcomes = [
        Simulated(GridPlan(1), 1.0, 10.0, 10**9, 4 * 10**9),
        Simulated(GridPlan(2), 1.0, 1000.0, 3 * 10**9, 4 * 10**9),
        Simulated(GridPlan(3), 1.0, 500.0, 9 * 10**9, 4 * 10**9),
        Impossible(GridPlan(4), "impossible"),
    ]
    root = ElementTree.fromstring(pareto_plot(outcomes))
    dots = {
        str(dot[0].text).split()[0]: (
            dot.get("class"), float(dot.get("cx", 0)), float(dot.get("cy", 0)),
        )
        for dot in root.iter(f"{SVG}circle")
    }  # fmt: skip
    assert len(dots) == 3
    small, fast, large = (dots[f"batch={n}"] for n in (1, 2, 3))
    assert (small[0], fast[0], large[0]) == ("front", "front", "large")
    assert small[1] < fast[1] < large[1]
    assert fast[2] < large[2] < small[2]
    for _, x, y in dots.values():
        assert 90 <= x <= 770 and 60 <= y <= 460
    (limit,) = [e for e in root.iter(f"{SVG}line") if e.get("class") == "limit"]
    assert fast[1] < float(limit.get("x1", 0)) < large[1]
    assert ElementTree.fromstring(pareto_plot(outcomes[3:])) is not None


def test_a_saved_plan_is_followed(model: Path, tmp_path: Path) -> None:
    plan, best, dist = (tmp_path / n for n in ("plan.json", "best.mlir", "dist.mlir"))
    succeed("search", model, *GRID, *PLAN, "--save-plan", plan, "-o", best)
    succeed("distribute", model, "--plan", plan, "-o", dist)
    asked = tmp_path / "asked.mlir"
    succeed("distribute", model, "--cluster", "dgx2", "-t", "2", "-o", asked)
    assert dist.read_text() == asked.read_text()
    for options, expected in {
        ("--plan", plan, "-t", "2"): "so that -t cannot be given beside --plan",
        ("--plan", plan, "--cluster", "dgx2"): "so that --cluster cannot be given",
        (): "distribute needs --cluster",
        ("--plan", model): "it is not JSON",
    }.items():
        assert expected in failure("distribute", model, *options, "-o", dist)
