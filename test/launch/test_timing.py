"""Timing packages: which calls are timed, and what a clock that only counts makes of them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distir.calibration.probe import Prober, onnx, tensor, written
from distir.errors import DistIRError
from distir.launch import timing_rank
from distir.launch.packages import Spawner
from distir.launch.timing import TimedPackage, TimingSettings, time_packages
from distir.lowering.torch_package import write_package


class Clock:
    """Stands still unless a program runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class FakeBody:
    """A program whose first call takes `first` seconds and later ones `seconds`."""

    def __init__(self, clock: Clock, seconds: float, first: float):
        self.clock, self.seconds, self.first = clock, seconds, first
        self.seen: list[int] = []
        self.written: list[int] = []
        self.calls, self.is_alone = 1, True
        self.body = SimpleNamespace(main=self.main)
        self.collectives = SimpleNamespace(finish_sends=lambda: None)

    def arguments(self, least: int = 1) -> list[list[Any]]:
        return [[Number(i)] for i in range(max(least, 3))]

    def write(self, arguments: list[Any]) -> None:
        self.clock.now += 100.0  # which is not timed
        self.written += [number.value for number in arguments]

    def main(self, number: Number) -> None:
        self.clock.now += self.seconds if self.seen else self.first
        self.seen.append(number.value)


class Number:
    """An argument that is no tensor."""

    def __init__(self, value: int):
        self.value = value

    def is_floating_point(self) -> bool:
        return False


class OneRank:
    """No other rank to wait for."""

    def __init__(self, clock: Clock):
        self.clock = clock

    def start(self) -> float:
        return self.clock.now

    def synchronise(self) -> None:
        pass

    def largest(self, values: list[float]) -> list[float]:
        return values


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing_rank, "time", clock)
    return clock


def test_short_calls_are_timed_together(clock: Clock) -> None:
    """So many that they take `least_s`; the slow first call only warms up."""
    body = FakeBody(clock, 1e-3, first=5.0)
    settings = {"warm_up": 1, "samples": 4, "least_s": 0.02}
    times = timing_rank.time_body(body, OneRank(clock), settings)  # pyright: ignore
    assert times == pytest.approx([1e-3] * 4)
    assert body.calls == 20
    # Calls go through all sets of arguments, so that none stays in a cache.
    assert body.seen[-20:][:4] == [0, 1, 2, 0]


def test_turns(clock: Clock) -> None:
    """
    Programs alternate; in a turn an untimed call comes first, all with other arguments, which
    are written before calls that are timed.
    """
    bodies = [FakeBody(clock, 1e-3, first=9.0), FakeBody(clock, 4e-3, first=9.0)]
    settings = {"warm_up": 1, "samples": 3, "in_turn": 2}
    times = timing_rank.time_in_turn(bodies, OneRank(clock), settings)  # pyright: ignore
    assert times[0] == pytest.approx([1e-3] * 3)
    assert times[1] == pytest.approx([4e-3] * 3)
    assert [len(body.seen) for body in bodies] == [12, 12]
    assert bodies[0].seen[:6] == [0, 1, 2, 0, 1, 2]
    assert bodies[0].written[:4] == [1, 2, 1, 2]


def test_calls_together_last_from_the_last_start_to_the_last_end(clock: Clock) -> None:
    """Waiting for a rank that comes late belongs to what that rank did before."""

    class OtherRank(OneRank):
        def largest(self, values: list[float]) -> list[float]:
            # The other rank starts 2 s later and ends 1 s later, so it takes 1 s less.
            return [v + shifts.pop(0) for v in values]

    body = FakeBody(clock, 5.0, first=5.0)
    body.is_alone = False
    shifts = [0.0, 2.0, 1.0]
    settings = {"warm_up": 0, "samples": 1, "in_turn": 1}
    times = timing_rank.time_in_turn([body], OtherRank(clock), settings)  # pyright: ignore
    assert times == [[4.0]]


def test_what_an_op_before_would_have_computed_is_written(tmp_path: Path) -> None:
    """Parameters, states and integers are left alone; values stay as they are."""
    import torch

    x, ids = tensor(8, 8), tensor(8, element="i64")
    probe = written(
        "onnx.Gather",
        {"table": x, "ids": ids, "y": x, "z": x, "old": x},
        "%y = onnx.Gather(%table, %ids)",
        "%z = onnx.Add(%y, %old)",
        parameters=["table"],
    )
    folder = write_package(Prober().module(probe), tmp_path / "package")
    job = {"folder": str(folder), "below": 8, "footprint": 0}
    body = timing_rank.TimedBody(job, 0, 0, torch.device("cpu"))
    (arguments,) = body.arguments()
    before = [value.clone() for value in arguments if isinstance(value, torch.Tensor)]
    versions = [
        value._version for value in arguments if isinstance(value, torch.Tensor)
    ]
    body.write(arguments)
    after = [value for value in arguments if isinstance(value, torch.Tensor)]
    written_to = [
        value._version > old for value, old in zip(after, versions, strict=True)
    ]
    assert written_to == [False, False, True]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_real_ranks(tmp_path: Path, spawner: Spawner) -> None:
    """Programs of one process run on each of two ranks, by themselves or in turn."""
    x = tensor(8, 8)
    module = Prober().module(onnx("Add", [x, x], [x]))
    packages = [TimedPackage(write_package(module, tmp_path / "add"))] * 2
    for settings in (
        TimingSettings(rounds=2, warm_up=1, samples=3),
        TimingSettings(rounds=2, warm_up=1, samples=3, in_turn=2),
    ):
        found = time_packages(packages, 2, settings, spawner=spawner)
        assert [[len(r) for r in t] for t in found.times] == [[3, 3], [3, 3]]
        assert all(s > 0 for t in found.times for r in t for s in r)
        assert found.memory > 0 and found.device.startswith("one core of ")


def test_packages_are_loaded_side_by_side(tmp_path: Path) -> None:
    """Each with its own modules, wherever it lies, and without a change of the path."""
    x = tensor(8, 8)
    path = list(sys.path)
    loaded = list[Any]()
    for kind in ("Add", "Mul"):
        module = Prober().module(onnx(kind, [x, x], [x]))
        folder = write_package(module, tmp_path / f"a package of {kind}")
        loaded.append(timing_rank.load_package(str(folder), f"loaded_{kind}"))
    # The name of another package means this one from now on.
    loaded.append(timing_rank.load_package(str(folder), "loaded_Add"))
    assert sys.path == path
    values = torch.full((8, 8), 3.0), torch.full((8, 8), 5.0)
    for (program, runtime, collectives), expected in zip(
        loaded, (8, 15, 15), strict=True
    ):
        assert program.__package__ == runtime.__package__
        assert collectives.__package__ == program.__package__
        body = program.RANKS[0].program({}, program.RANKS[0].numbers)
        (result,) = runtime.results_of(body, list(values))
        assert torch.equal(result, torch.full((8, 8), float(expected)))
    assert loaded[0][1] is not loaded[1][1]


def test_a_backend_without_its_devices(tmp_path: Path, spawner: Spawner) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    x = tensor(8, 8)
    module = Prober().module(onnx("Add", [x, x], [x]))
    package = TimedPackage(write_package(module, tmp_path / "add"))
    with pytest.raises(DistIRError, match=r"nccl needs one GPU per process"):
        time_packages([package], 1, TimingSettings(), spawner=spawner, backend="nccl")


def test_nothing_to_time(spawner: Spawner) -> None:
    with pytest.raises(DistIRError, match="no package to time"):
        time_packages([], 2, TimingSettings(), spawner=spawner)
