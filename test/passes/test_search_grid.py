"""The grid of configurations, what each is worth, and which one `search-grid` takes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.thoroughness import IS_THOROUGH
from support.training_programs import training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.search_grid import SearchGridPass
from distir.planning.annotations import read_notes
from distir.planning.distribution import distribute
from distir.planning.grid import (
    Evaluator,
    GridPlan,
    Impossible,
    Journal,
    Programs,
    Result,
    Simulated,
    Space,
    nothing_fits,
    pareto_front,
    ranked,
    run,
    switched,
)
from distir.planning.programs import replace_cluster
from distir.planning.result import simulated

CLUSTER = "dgx2"


def small_gpt(batch: int = 16) -> ModuleOp:
    module = build_gpt(4, 32, 4, 64, batch, 8)
    replace_cluster(module, load_cluster(CLUSTER))
    return module


def small_training(batch: int = 16) -> ModuleOp:
    module = training_mlp(batch)
    replace_cluster(module, load_cluster(CLUSTER))
    return module


def all_of(
    source: object, configurations: Sequence[GridPlan], jobs: int
) -> list[Result]:
    found = [o for some in run(source, configurations, jobs) for o in some]  # type: ignore[arg-type]
    return sorted(found, key=lambda o: o.plan)


# The grid


def test_the_grids_of_the_paper() -> None:
    """1035 configurations for GPT-2, 75 where the batch is large enough for all."""
    batches = [2**n for n in range(7, 21)]
    gpt = Space(batches, trains=False, devices=16).plans()
    assert len(gpt) == len(set(gpt)) == 1035
    assert all(c.d * c.t * c.p == 16 for c in gpt)
    assert all(c.batch // c.d // c.k for c in gpt)
    assert {c.k for c in gpt if c.p == 1} == {1}
    assert {c.k for c in gpt if c.p > 1} == {2, 4, 8, 16, 32, 64, 128}
    assert len(Space([8192], trains=False, devices=16).plans()) == 75


def test_degrees_of_any_world_size() -> None:
    found = Space([64], trains=False, devices=6, micro_batches=[2]).plans()
    degrees = [(c.d, c.t, c.p) for c in found]
    assert sorted(degrees) == [
        (1, 1, 6), (1, 2, 3), (1, 3, 2), (1, 6, 1), (2, 1, 3),
        (2, 3, 1), (3, 1, 2), (3, 2, 1), (6, 1, 1),
    ]  # fmt: skip


def test_what_only_some_configurations_have() -> None:
    """ZeRO where d > 1, schedules of pipelines, accumulation in trainings when asked."""
    space = Space(
        [64],
        trains=True,
        degrees=[(2, 1, 1), (1, 1, 2)],
        micro_batches=[2],
        zero=[0, 1],
        checkpoint=["none", "full"],
        schedules=["1f1b", "gpipe"],
    )
    found = space.plans()
    assert len(found) == len(set(found)) == 2 * 2 * 2 + 2 * 2
    assert all(c.d > 1 for c in found if c.zero)
    assert all(c.p > 1 for c in found if c.schedule)
    assert {c.k for c in found if c.p == 1} == {1, 2}
    forward = replace(space, trains=False, zero=[0], checkpoint=["none"])
    assert {c.k for c in forward.plans() if c.p == 1} == {1}


def test_overlap_is_an_axis_of_the_grid() -> None:
    """Each configuration with and without it, but where nothing communicates."""
    space = Space([64], trains=True, degrees=[(2, 1, 1), (1, 1, 2), (1, 1, 1)])
    plain = replace(space, micro_batches=[2]).plans()
    both = replace(space, micro_batches=[2], overlap=switched("overlap", ("off", "on")))
    found = both.plans()
    alone = [c for c in plain if c.d * c.t * c.p == 1]
    assert len(alone) == 2
    overlapped = [replace(c, overlap=True) for c in plain if c not in alone]
    assert set(found) == {*plain, *overlapped} and len(found) == len(set(found))
    assert all(
        c.overlap for c in replace(both, degrees=[(2, 1, 1)], overlap=(True,)).plans()
    )
    with pytest.raises(
        DistIRError, match="overlap cannot be 'yes'; choose from off, on"
    ):
        switched("overlap", ("yes",))


def test_overlap_is_worth_what_distribute_makes_of_it() -> None:
    """The same program with the gradients' reduction under the backward, or as it was."""
    space = Space([16], trains=True, degrees=[(2, 1, 1)], overlap=(False, True))
    plain, overlapped = simulated(all_of(small_training, space.plans(), 1))
    assert not plain.plan.overlap and overlapped.plan.overlap
    assert overlapped.step_time_s < plain.step_time_s
    module = small_training()
    assert isinstance(overlapped.plan, GridPlan)
    distribute(module, overlapped.plan.options())
    assert simulate(module).step_time_s == overlapped.step_time_s


def test_messages_are_worth_what_distribute_makes_of_them() -> None:
    space = Space([16], trains=True, degrees=[(2, 1, 1), (2, 1, 2)], micro_batches=[2])
    fewer = simulated(all_of(small_training, space.plans(), 1))
    plain = simulated(all_of(small_training, replace(space, buckets=False).plans(), 1))
    assert [replace(r.plan, buckets=False) for r in fewer] == [r.plan for r in plain]
    for before, after in zip(plain, fewer, strict=True):
        assert after.step_time_s < before.step_time_s
        module = small_training()
        assert isinstance(after.plan, GridPlan) and after.plan.buckets
        distribute(module, after.plan.options())
        assert simulate(module).step_time_s == after.step_time_s


def test_grids_without_configurations() -> None:
    with pytest.raises(DistIRError, match="the grid is empty"):
        Space([2], trains=False, degrees=[(4, 1, 1)]).plans()
    with pytest.raises(DistIRError, match="are for training steps"):
        Space([2], trains=False, zero=[1]).plans()


# What a configuration is worth


@pytest.mark.parametrize(
    "training", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_sharing_work_changes_nothing(training: bool) -> None:
    """Each outcome is exactly that of the program that `distribute` makes on its own."""
    source = small_training if training else small_gpt
    devices = 4 if IS_THOROUGH else 2
    counts = [2, 3, 4] if IS_THOROUGH or training else [2, 3]
    space = Space([16, 24], training, devices=devices, micro_batches=counts)
    if training:
        space = Space(
            [16],
            training,
            degrees=[(2, 1, 2), *([(1, 2, 2), (2, 2, 1)] if IS_THOROUGH else [])],
            micro_batches=counts,
            zero=[0, 3],
            checkpoint=["none", "full"],
            schedules=["1f1b", "gpipe"],
        )
    configurations = space.plans()
    evaluator = Evaluator(source)
    errors = 0
    # The first ones once more: what is known of them must not disturb.
    for number, configuration in enumerate(configurations + configurations[:8]):
        outcome = evaluator.evaluate(configuration)
        errors += isinstance(outcome, Impossible)
        # All are evaluated; of those that are checked, two of five are of every kind.
        if number % 5 > 1 and not IS_THOROUGH:
            continue
        module = source(configuration.batch)
        try:
            distribute(module, configuration.options())
        except DistIRError as error:
            assert outcome == Impossible(configuration, " ".join(str(error).split()))
            continue
        assert isinstance(outcome, Simulated)
        simulation = simulate(module)
        assert outcome.step_time_s == simulation.step_time_s, configuration
        assert outcome.throughput_samples_per_s == simulation.throughput_samples_per_s
        assert outcome.peak_memory_bytes == max(simulation.peak_memory_bytes)
        assert outcome.fits is simulation.fits
    # A batch of 16 in 3 micro-batches, for one.
    assert 0 < errors < len(configurations) / 2


def test_an_illegal_configuration_has_its_reason() -> None:
    outcome = Evaluator(small_gpt).evaluate(GridPlan(16, d=3))
    assert isinstance(outcome, Impossible) and not outcome.fits
    assert "cannot be split evenly over axis 'd' of size 3" in outcome.error


def test_processes_find_what_one_finds() -> None:
    configurations = Space([8, 16], trains=False, devices=2).plans()
    alone, together = (all_of(small_gpt, configurations, jobs) for jobs in (1, 2))
    assert alone == together and len(alone) == len(configurations)


def test_a_process_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    def exits(*_: object) -> Result:
        os._exit(1)

    monkeypatch.setattr(Evaluator, "evaluate", exits)
    configurations = Space([8, 16], trains=False, devices=2).plans()
    with pytest.raises(DistIRError, match="a process died"):
        list(run(small_gpt, configurations, 2))


# The best


def _outcome(n: int, throughput: float, peak: int, error: str) -> Result:
    if error:
        return Impossible(GridPlan(n), error)
    return Simulated(GridPlan(n), 1.0, throughput, peak, 5)


_outcomes = st.lists(
    st.builds(
        _outcome,
        st.integers(1, 99),
        st.sampled_from([1.0, 2.0, 3.0, 4.0]),
        st.integers(1, 7),
        st.sampled_from(["", "impossible"]),
    ),
    max_size=12,
)


@given(_outcomes)
def test_pareto_front(outcomes: list[Result]) -> None:
    def value(o: Simulated) -> tuple[float, int]:
        return o.throughput_samples_per_s, o.peak_memory_bytes

    def dominates(a: Simulated, b: Simulated) -> bool:
        (fast, small), (slow, large) = value(a), value(b)
        return fast >= slow and small <= large and value(a) != value(b)

    fitting = [o for o in simulated(outcomes) if o.peak_memory_bytes <= 5]
    best = {value(o) for o in fitting if not any(dominates(a, o) for a in fitting)}
    front = pareto_front(outcomes)
    assert {value(o) for o in front} == best and len(front) == len(best)
    assert len(ranked(outcomes)) == len(fitting)
    if fitting:
        most = max(o.throughput_samples_per_s for o in fitting)
        assert ranked(outcomes)[0].throughput_samples_per_s == most
        assert front[0] == ranked(outcomes)[0]


def test_the_smallest_memory_that_would_do() -> None:
    a = Simulated(GridPlan(8, d=2), 1.0, 1.0, 3 * 10**9, 10**9)
    b = Simulated(GridPlan(8, t=2), 1.0, 0.5, 2 * 10**9, 10**9)
    c = Impossible(GridPlan(8, d=3), "the reason")
    message = nothing_fits([a, b, c])
    assert "2 possible configurations" in message
    assert "batch=8 d=1 t=2 p=1 k=1, needs 2 GB on a device that has 1 GB" in message
    assert "the reason" in nothing_fits([c])


# The pass


@pytest.mark.parametrize("training", [False, True])
def test_the_module_becomes_the_best_program(training: bool) -> None:
    module = (small_training if training else small_gpt)()
    arguments = random_arguments(module, 0, None)
    expected = run_program(module, arguments)
    options = {"zero": (0, 1)} if training else {}
    SearchGridPass(world_size=2, micro_batches=(2,), jobs=1, **options).apply(  # type: ignore[arg-type]
        Context(), module
    )
    module.verify()
    for a, b in zip(expected, run_program(module, arguments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    note = read_notes(module)[-1]
    assert note.startswith("the grid search chose batch=16 d=")
    simulation = simulate(module)
    assert f"{simulation.throughput_samples_per_s:.4g} samples/s" in note
    space = Space([16], training, 2, micro_batches=[2], zero=options.get("zero", (0,)))
    source = small_training if training else small_gpt
    outcomes = all_of(source, space.plans(), 1)
    best = max(o.throughput_samples_per_s for o in simulated(outcomes) if o.fits)
    assert simulation.throughput_samples_per_s == best


def test_less_memory_another_choice(tmp_path: Path) -> None:
    """The whole parameters do not fit any more, so they are split."""

    def chosen(memory: int) -> tuple[str, bool]:
        module = build_mlp(4, 64, 256)
        text = str(load_cluster(CLUSTER))
        assert "memory = 32000000000" in text
        file = tmp_path / f"{memory}.mlir"
        file.write_text(text.replace("memory = 32000000000", f"memory = {memory}"))
        replace_cluster(module, load_cluster(file))
        SearchGridPass(world_size=4, jobs=1).apply(Context(), module)
        return read_notes(module)[0], simulate(module).fits

    note, fits = chosen(32_000_000_000)
    assert "d=4 t=1" in note and fits
    note, fits = chosen(100_000)
    assert "d=4 t=1" not in note and fits


def test_no_cluster() -> None:
    with pytest.raises(DistIRError, match="has 0 clusters"):
        SearchGridPass().apply(Context(), build_mlp(2, 8, 8))


# Resuming


@pytest.fixture
def programs() -> Programs:
    return Programs.of([small_gpt()], load_cluster(CLUSTER))


def outcomes_of(programs: Programs) -> list[Result]:
    return all_of(programs, [GridPlan(16, d=2), GridPlan(16, d=3)], jobs=1)


def test_a_journal_remembers(tmp_path: Path, programs: Programs) -> None:
    path = tmp_path / "journal.jsonl"
    first, second = outcomes_of(programs)
    assert isinstance(first, Simulated) and isinstance(second, Impossible)
    with Journal(path, programs) as journal:
        assert journal.results == []
        journal.add([first])
    with Journal(path, programs) as journal:
        assert journal.results == [first]
        journal.add([second])
    # The machine went down in the middle of a line.
    whole = path.read_text()
    path.write_text(whole[:-20])
    with Journal(path, programs) as journal:
        assert journal.results == [first]
        journal.add([second])
    assert path.read_text() == whole


def test_a_journal_of_something_else(tmp_path: Path, programs: Programs) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, programs):
        pass
    for other in (
        Programs.of([small_gpt(32)], load_cluster(CLUSTER)),
        Programs.of([small_gpt()], load_cluster("dgx-a100")),
    ):
        before = path.read_text()
        with pytest.raises(DistIRError, match="of other programs, or of another"):
            Journal(path, other).__enter__()
        assert path.read_text() == before
    for text in ("# my notes\n", json.dumps([1]) + "\n", "\x00\n", "no line ends"):
        path.write_text(text)
        with pytest.raises(DistIRError, match="cannot be resumed"):
            Journal(path, programs).__enter__()
        assert path.read_text() == text


def test_two_programs_for_one_batch() -> None:
    with pytest.raises(DistIRError, match="two of the programs have a batch of 16"):
        Programs.of([small_gpt(), small_gpt()], load_cluster(CLUSTER))
