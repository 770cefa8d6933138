"""Tuning: spaces of knobs and plans, which points are tried, and what is best."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random

import pytest
from support.command_line import failure, succeed
from support.thoroughness import sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.frontends.models.basic import build_mlp
from distir.hardware import load_cluster
from distir.passes.differentiate import DifferentiatePass
from distir.planning.plans.plan import GridPlan, Space
from distir.planning.plans.result import Impossible, Simulated
from distir.scheduling import Columns, Rows, Schedule
from distir.scheduling.tuning.corrections import Candidate, Corrections
from distir.scheduling.tuning.journal import TuningJournal
from distir.scheduling.tuning.programs import TunedPrograms
from distir.scheduling.tuning.space import Point, TuningSpace
from distir.scheduling.tuning.trials import Trial, Trials
from distir.scheduling.tuning.tuner import Tuner
from distir.transforms.projection.program import devices_of

DEGREES = [(2, 1, 1), (1, 2, 1), (1, 1, 2)]


def ratios(batch: int) -> list[float]:
    return [0.0, 0.5, 1.0] if batch < 8 else [0.5, 1.0]


def not_all(batch: int, ratio: float) -> bool:
    return batch < 8 or ratio < 1


def script() -> Schedule:
    """Three ratios for the small batch and one for the large one."""
    s = Schedule()
    s.knob("batch", [4, 8], option="batch")
    ratio = s.knob("ratio", ratios)
    s.require(not_all)
    s["layers.*"].first(ratio).recompute("full")
    s["layers.0"].split(Columns("t"))
    s["layers.1"].split(Rows("t"))
    return s


def differentiated(module: ModuleOp) -> None:
    DifferentiatePass(loss="mse", optimizer="sgd").apply(Context(), module)


def programs(schedule: Schedule) -> TunedPrograms:
    models = {batch: build_mlp(4, 16, batch) for batch in (4, 8)}
    cluster = load_cluster("cpu")
    return TunedPrograms(models, schedule.recorded(), cluster, differentiated)


def space_of(tuned: TunedPrograms, **grid: object) -> TuningSpace:
    options = {"degrees": DEGREES, "micro_batches": (2, 4), **grid}
    plans = Space([4, 8], True, **options).plans()  # type: ignore[arg-type]
    return TuningSpace(tuned.sequence, plans)


@pytest.fixture(scope="module")
def simulated() -> Tuner:
    """All points of a space, simulated in one process."""
    tuned = programs(script())
    tuner = Tuner(space_of(tuned), tuned, jobs=1)
    tuner.exhaustive(prune=False)
    return tuner


def test_a_space_has_what_goes_together() -> None:
    space = space_of(programs(script()))
    points = list(space.points())
    assert len(points) == len(set(points))
    expected = {
        (batch, ratio)
        for batch, ratio in product((4, 8), (0.0, 0.5, 1.0))
        if ratio in ratios(batch) and not_all(batch, ratio)
    }
    assert {tuple(dict(p.chosen).values()) for p in points} == expected
    assert all(dict(p.chosen)["batch"] == p.plan.batch for p in points)
    # Over two devices a batch of 4 has no 4 micro-batches.
    plans = Counter(plan.batch for plan in space.plans)
    assert plans == {4: 7, 8: 8}
    assert len(points) == 3 * plans[4] + plans[8]
    assert space.coordinates == ("ratio", "batch", "d, t, p", "k")


def test_along_a_coordinate_nothing_else_changes() -> None:
    space = space_of(programs(script()))
    known = set(space.points())
    point = Point((("batch", 4), ("ratio", 0.5)), GridPlan(4, d=2, k=2))
    assert point in known
    along = {name: space.along(point, name) for name in space.coordinates}
    assert [dict(p.chosen)["ratio"] for p in along["ratio"]] == [0.0, 0.5, 1.0]
    assert {p.plan.batch for p in along["batch"]} == {4, 8}
    assert {(p.plan.d, p.plan.t, p.plan.p) for p in along["d, t, p"]} == set(DEGREES)
    assert {p.plan.k for p in along["k"]} == {1, 2}
    assert {p.plan for p in along["batch"] + along["ratio"] + along["k"]} < {
        GridPlan(batch, d=2, k=k) for batch in (4, 8) for k in (1, 2)
    } | {point.plan}
    assert {p.plan.k for p in along["d, t, p"]} == {1, 2, 4}
    # The schedule excludes that all layers of a large batch are computed again.
    all_of_them = Point((("batch", 4), ("ratio", 1.0)), point.plan)
    larger = [p for p in space.along(all_of_them, "batch") if p.plan.batch == 8]
    assert [dict(p.chosen)["ratio"] for p in larger] == [0.5]
    assert all(p in known for points in along.values() for p in points)
    random = Random(0)
    assert all(space.drawn(random) in known for _ in range(20))


def test_each_point_is_what_its_schedule_and_plan_say(simulated: Tuner) -> None:
    point = Point((("batch", 4), ("ratio", 0.5)), GridPlan(4, t=2))
    module = simulated.programs.distributed(point)
    text = str(module)
    assert text.count("@layer_backward_recompute") > 1
    assert len(devices_of(module)) == 2
    result = simulated.trials[point]
    assert isinstance(result, Simulated)
    assert str(point) == "ratio=0.5 batch=4 d=1 t=2 p=1 k=1"


@pytest.mark.parametrize("jobs", sampled([2, 1], 2))
def test_bounds_do_not_rule_out_the_best(simulated: Tuner, jobs: int) -> None:
    tuned = simulated.programs
    tuner = Tuner(space_of(tuned), tuned, jobs=jobs)
    tuner.exhaustive()
    assert tuner.best == simulated.best
    assert set(tuner.trials) <= set(simulated.trials)
    for point, result in tuner.trials.items():
        assert result == simulated.trials[point]


def test_a_descent_finds_the_best_with_fewer_trials(
    simulated: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = simulated.programs
    assert simulated.best is not None
    found: list[Point | None] = []
    # What it would simulate is known.
    monkeypatch.setattr(
        Trials, "one", lambda _, point: Trial(point, simulated.trials[point])
    )
    for seed in range(3):
        tuner = Tuner(simulated.space, tuned, jobs=1)
        tuner.descent(16, seed)
        assert len(tuner.trials) == 16
        found.append(tuner.best)
    # A pipeline has a best number of micro-batches of its own, where a descent may end.
    assert found.count(simulated.best) >= 2
    # It ends when it knows everything.
    tuner = Tuner(simulated.space, tuned, jobs=1)
    tuner.trials = dict(simulated.trials)
    tuner.descent(1000)
    assert set(tuner.trials) == set(simulated.trials)


class Machine:
    """One on which a step takes longer than predicted, by a factor for each plan's devices."""

    def __init__(self, tuner: Tuner, factor: dict[str, float], capacity: float):
        self.runs = 0
        self._tuner, self._factor, self._capacity = tuner, factor, capacity
        self._made: list[tuple[Point, ModuleOp]] = []

    def notes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on it knows of which point a program is that is made."""
        original = TunedPrograms.distributed

        def distributed(programs: TunedPrograms, point: Point) -> ModuleOp:
            module = original(programs, point)
            self._made.append((point, module))
            return module

        monkeypatch.setattr(TunedPrograms, "distributed", distributed)

    def seconds(self, modules: Sequence[ModuleOp]) -> list[float | None]:
        (module,) = modules
        self.runs += 1
        point, made = self._made[-1]
        assert made is module
        result = self._tuner.trials[point]
        assert isinstance(result, Simulated)
        if result.peak_memory_bytes > self._capacity:
            return [None]
        plan = point.plan
        kind = "t" if plan.t > 1 else "p" if plan.p > 1 else "d"
        return [result.step_time_s * self._factor[kind]]


def test_runs_correct_the_simulator(
    simulated: Tuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the simulator says is best is slow here, as all that is divided like it."""
    tuned = simulated.programs
    ranked = simulated.ranked
    kinds = ["t" if p.plan.t > 1 else "p" if p.plan.p > 1 else "d" for p in ranked]
    slow = kinds[0]
    machine = Machine(simulated, {k: 3.0 if k == slow else 1.0 for k in "dtp"}, 1e9)
    machine.notes(monkeypatch)
    path = tmp_path / "tuning.jsonl"
    with TuningJournal(path, tuned, "") as journal:
        journal.add([Trial(*trial) for trial in simulated.trials.items()])
    with TuningJournal(path, tuned, "") as journal:
        tuner = Tuner(simulated.space, tuned, 1, journal)
        tuner.measure(12, machine.seconds)
    expected = next(p for p, k in zip(ranked, kinds, strict=True) if k != slow)
    assert tuner.best == expected
    assert machine.runs == len(tuner.measured) <= 12
    # Everything is known when it is done again.
    with TuningJournal(path, tuned, "") as journal:
        again = Tuner(simulated.space, tuned, 1, journal)
        assert again.trials == simulated.trials
        again.measure(len(tuner.measured), machine.seconds)
    assert again.measured == tuner.measured
    assert machine.runs == len(tuner.measured)
    with (
        pytest.raises(DistIRError, match="holds the search of other programs"),
        TuningJournal(path, tuned, "another optimizer"),
    ):
        pass


def test_what_ran_out_of_memory_says_what_fits() -> None:
    """One capacity: after a few runs nothing that needs more is tried."""
    candidates = [Candidate({"size": n}, 100.0 + n, 1e9 * n) for n in range(1, 31)]
    corrections = Corrections(candidates, 30e9)
    tried: list[int] = []
    while (place := corrections.next()) is not None:
        size = place + 1
        tried.append(size)
        corrections.add(place, None if size > 17 else 100.0 + size)
    assert corrections.best is not None
    assert candidates[corrections.best].memory == 17e9
    assert sum(size > 17 for size in tried) <= 5
    assert len(tried) <= 12


def test_factors_are_learned_from_few_runs() -> None:
    """Of two knobs one is 20 % better than predicted, whatever the other one is."""
    values = list(product(("a", "b", "c"), range(8)))
    candidates = [Candidate({"x": x, "y": y}, 100.0 + y, 1.0) for x, y in values]

    def real(place: int) -> float:
        return candidates[place].throughput * (1.2 if values[place][0] == "b" else 1.0)

    corrections = Corrections(candidates, 30e9)
    while (place := corrections.next()) is not None:
        corrections.add(place, real(place))
    assert corrections.best == values.index(("b", 7))
    assert len(corrections.measured) < 14
    assert corrections.corrected(values.index(("b", 0))) == pytest.approx(120, rel=0.05)


def test_what_is_learned_of_a_number_holds_for_those_beside_it() -> None:
    """The larger a number, the better it is than predicted; names tell nothing of others."""
    seen: list[float] = []
    for numbers in (True, False):
        values = [n if numbers else f"v{n}" for n in range(9)]
        candidates = [Candidate({"size": value}, 100.0, 1.0) for value in values]
        corrections = Corrections(candidates, 30e9)
        for place in (0, 4, 7):
            corrections.add(place, 100.0 + 2 * place)
        seen.append(corrections.corrected(8) - corrections.corrected(1))
    assert seen[0] > 5 and seen[1] == pytest.approx(0, abs=1e-6)


def test_knobs_that_are_no_option_of_any_plan() -> None:
    s = Schedule()
    s.knob("ways", [16], option="t")
    with pytest.raises(
        DistIRError, match=r"that are options, ways \(t\), have the values"
    ):
        space_of(programs(s))


def test_what_the_schedule_cannot_do_is_not_possible() -> None:
    s = Schedule()
    s["layers.*"].first(s.knob("count", [1, 9])).recompute("full")
    tuned = programs(s)
    tuner = Tuner(space_of(tuned, micro_batches=()), tuned, jobs=1)
    tuner.exhaustive()
    kinds = {(dict(p.chosen)["count"], type(r)) for p, r in tuner.trials.items()}
    assert kinds == {(1, Simulated), (9, Impossible)}
    assert tuner.best is not None and dict(tuner.best.chosen)["count"] == 1


SCRIPT = """
def schedule(s):
    s["layers.*"].first(s.knob("ratio", [0.0, 0.5])).recompute("full")
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    model, path = tmp_path / "m.mlir", tmp_path / "s.py"
    succeed(
        *("build", "mlp", "--layers", "2", "--d-model", "8", "--batch", "4"),
        *("-o", model),
    )
    path.write_text(SCRIPT)
    return model, path


TRAINING = ("--training", "--loss", "mse", "--optimizer", "sgd")


def test_the_command_writes_the_best(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, path = files
    best, by_hand, journal = (tmp_path / n for n in ("b.mlir", "h.mlir", "j.jsonl"))
    found = succeed(
        *("schedule", model, path, "--tune", "exhaustive", "--cluster", "cpu"),
        *("--world-size", "2", "--degrees", "2,1,1", "--jobs", "1", *TRAINING),
        *("--resume", journal, "-o", best),
    )
    assert "2 of up to 2 points simulated: 2 fit" in found.output
    assert "-d 2 -t 1 -p 1 -k 1` make it" in found.errors
    (ratio,) = re.findall(r"`distir schedule --set (ratio=0\.\d)`", found.errors)
    succeed("schedule", model, path, "--set", ratio, *TRAINING, "-o", by_hand)
    succeed(
        "distribute", best, "--cluster", "cpu", "-d", "2", "-o", tmp_path / "d.mlir"
    )
    assert best.read_text() == by_hand.read_text()
    assert len(journal.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cluster", "cpu"), "--cluster is of use with --tune only; add it"),
        (("--loss", "mse"), "--loss is of use with --training only"),
        (("--tune", "exhaustive"), "--tune needs --cluster"),
        (("--tune", "measure"), "say how many points may be run: --tune measure N"),
        (("--tune", "descent", "0"), "cannot read --tune descent 0"),
        (("--tune", "exhaustive", "7"), "cannot read --tune exhaustive 7"),
        (("--tune", "guess"), "there is no method of tuning 'guess'"),
        (
            ("--tune", "exhaustive", "--cluster", "cpu", "--set", "ratio=0.5"),
            "--tune chooses the values of knobs",
        ),
    ],
)
def test_options_that_do_not_go_together(
    files: tuple[Path, Path], arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    model, path = files
    output = tmp_path / "b.mlir"
    assert message in failure("schedule", model, path, "-o", output, *arguments)
