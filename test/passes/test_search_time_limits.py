"""A time limit is one for everything that a search does, and there is a plan whatever it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from support.programs import parse
from support.random_programs import arguments_of, assert_same_results
from support.thoroughness import chosen, sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.passes.auto_parallel import AutoParallelPass
from distir.passes.differentiate import DifferentiatePass
from distir.passes.search_sharding import SearchShardingPass
from distir.planning.annotations import read_notes
from distir.planning.grid import Evaluator, LayoutPlan, Plan, Result, Simulated
from distir.planning.layouts.reshards import ReshardGraph
from distir.solver import clock
from distir.solver.clock import Clock, TimeIsOver

AXES = ("a=2", "b=2", "c=2")


def transposes(count: int = 5) -> ModuleOp:
    """
    Ops on four dimensions that all axes can split: many alternatives each, and as many
    changes of layout between any two of them.
    """
    lines: list[str] = []
    shape, value = [8, 16, 32, 64], "%x"
    for i in range(count):
        before, shape = shape, [shape[-1], *shape[:-1]]
        types = ["tensor<" + "x".join(map(str, s)) + "xf32>" for s in (before, shape)]
        lines += [
            f"%t{i} = onnx.Transpose({value}) {{perm = [3, 0, 1, 2]}} : ({types[0]}) -> {types[1]}",
            f"%r{i} = onnx.Relu(%t{i}) : ({types[1]}) -> {types[1]}",
        ]
        value = f"%r{i}"
    last = "tensor<" + "x".join(map(str, shape)) + "xf32>"
    return parse(
        'func.func @main(%x: tensor<8x16x32x64xf32> {dist.role = "input", dist.name = '
        f'"x"}}) -> {last} {{\n'
        + "\n".join(lines)
        + f"\nfunc.return {value} : {last}\n}}"
    )


def placed(module: ModuleOp, devices: int = 8) -> ModuleOp:
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(load_cluster("dgx2", devices), first)
    return module


class Ticks:
    """A clock for the tests: each look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def searched(module: ModuleOp, **options: object) -> tuple[ModuleOp, str]:
    """The program distributed, and what the search says of it."""
    result = module.clone()
    SearchShardingPass(**options).apply(Context(), result)  # type: ignore[arg-type]
    result.verify()
    return result, read_notes(result)[-1]


@pytest.mark.parametrize(
    "looks",
    chosen([1, 3, 10, 30, 60, 100, 200, 400, 1000], [1, 10, 60, 200]),
)
def test_there_is_a_plan_wherever_the_time_ends(
    looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the graph is built, priced or solved, of one axis or of all."""
    module = placed(build_mlp(layers=2, d_model=8, batch=8))
    DifferentiatePass(loss="mse", optimizer="sgd").apply(Context(), module)
    monkeypatch.setattr(clock, "time", Ticks())
    result, _ = searched(module, axes=AXES, time_limit=float(looks))
    assert_same_results(module, result, arguments_of(module))


@pytest.mark.parametrize("options", sampled([{}, {"k": 2}, {"p": 2, "k": 2}], 2))
def test_there_is_a_plan_without_any_time(options: dict[str, int]) -> None:
    """What was asked for is kept."""
    module = placed(build_gpt(2, d_model=8, heads=2, vocab=16, batch=8, seq=4))
    DifferentiatePass(optimizer="sgd").apply(Context(), module)
    shard = ("*.weight:0=t",)
    result, note = searched(
        module, axes=("d=2", "t=2"), shard=shard, time_limit=0.0, **options
    )
    assert "the time was over before any layouts were found" in note
    assert "[{t}, {}]" in str(result)
    assert_same_results(module, result, arguments_of(module))


def test_axes_that_were_chosen_before_the_time_was_over_stay_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The time is over while the prices of the second axis are looked up. The batch stays
    whole, as data parallelism over all axes would be faster.
    """
    module = placed(build_mlp(layers=2, d_model=64, batch=64))
    built: list[ReshardGraph] = []
    original = ReshardGraph.problem

    def problem(self: ReshardGraph, *arguments: object):
        built.append(self)
        if len(built) > 1:
            raise TimeIsOver
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ReshardGraph, "problem", problem)
    result, note = searched(module, axes=AXES, time_limit=1e9, whole=("input",))
    assert "2 of the axes were not chosen any more" in note
    assert "{a}" in str(result) and "{b}" not in str(result)
    assert_same_results(module, result, arguments_of(module))


def test_an_interruption_before_there_is_anything_ends_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = placed(build_mlp(layers=2, d_model=8, batch=8))
    original = ReshardGraph.problem

    def problem(self: ReshardGraph, *arguments: object):
        os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ReshardGraph, "problem", problem)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        searched(module, axes=AXES)
    assert signal.getsignal(signal.SIGINT) == before


def test_parts_of_a_clock_end_with_it() -> None:
    whole = Clock(0.0)
    assert whole.part(1.0, 100.0).left <= 0
    with pytest.raises(TimeIsOver):
        whole.part(1.0).check()
    endless = Clock()
    endless.check()
    endless.interrupted = True
    assert endless.part(1.0).stopped and endless.part(1.0).left <= 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["distir.tools.distir_opt", "-p", 'search-sharding{axes="a=2","b=2","c=2" time-limit=2}'],
        ["distir.tools.cli", "search", "--cluster", "dgx2", "--devices", "8", "--auto", "--time-limit", "2"],
    ],
    ids=["search-sharding", "auto"],
)  # fmt: skip
def test_two_seconds_are_no_minutes(command: list[str], tmp_path: Path) -> None:
    """A search for which the prices alone take minutes."""
    path = tmp_path / "program.mlir"
    path.write_text(str(placed(transposes(12))))
    start = monotonic()
    name, *rest = command
    call = f"import sys; from {name} import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", call, *rest, str(path)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert monotonic() - start < 30


def test_a_time_limit_below_nothing_is_refused() -> None:
    with pytest.raises(DistIRError, match="the time limit is -1"):
        searched(placed(build_mlp(2, 8, 8)), axes=AXES, time_limit=-1.0)


def test_evaluations_that_have_begun_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Evaluator.evaluate

    def evaluate(
        self: Evaluator, configuration: Plan, known: Simulated | None = None
    ) -> Result:
        if isinstance(configuration, LayoutPlan):
            sleep(100)
        return original(self, configuration, known)

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    module = placed(build_mlp(layers=2, d_model=8, batch=8), 4)
    start = monotonic()
    AutoParallelPass(jobs=1, time_limit=1.0).apply(Context(), module)
    assert monotonic() - start < 50
    assert "the time was over before all plans were judged" in read_notes(module)[-1]
