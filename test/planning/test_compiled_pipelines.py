"""Pipelines that a search simulates without their programs: what `distribute` and `simulate` find."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from support.thoroughness import IS_THOROUGH, chosen, each_once, sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.profiles.files import load_profile
from distir.interpreters.simulator.profiles.profile import Profile
from distir.passes.differentiate import DifferentiatePass
from distir.planning.distribution.distribute import distribute
from distir.planning.grid import Evaluator, evaluate
from distir.planning.layouts.fitted_plan import Step
from distir.planning.plans.plan import GridPlan
from distir.planning.plans.programs import replace_cluster
from distir.planning.plans.result import Impossible, Simulated

BATCH = 16


@cache
def _program(kind: str) -> ModuleOp:
    """
    With layers alike, with tied weights at both ends, and dropout that numbers micro-batches;
    `few` is a GPT of two layers.
    """
    if kind == "mlp":
        module = build_mlp(layers=8, d_model=16, batch=BATCH)
    else:
        dropout = 0.1 if kind == "dropout" else 0.0
        layers = 2 if kind == "few" else 8 if IS_THOROUGH else 4
        module = build_gpt(layers, 16, 4, 32, BATCH, 8, dropout=dropout)
    if kind != "inference":
        loss = "mse" if kind == "mlp" else "cross_entropy"
        DifferentiatePass(loss=loss).apply(Context(), module)
    return module


def _source(kind: str, cluster: ClusterOp | None = None) -> Callable[[int], ModuleOp]:
    def source(batch: int) -> ModuleOp:
        module = _program(kind).clone()
        on = load_cluster("dgx2") if cluster is None else cluster.clone()
        replace_cluster(module, on)
        return module

    return source


def _check(
    source: Callable[[int], ModuleOp],
    plans: list[GridPlan],
    profiles: Sequence[Profile] = (),
) -> list[Simulated]:
    """The results of the plans that are possible; each is that of the program on its own."""
    evaluator, possible = Evaluator(source, profiles), list[Simulated]()
    for plan in plans:
        result = evaluator.evaluate(plan)
        module = source(BATCH)
        try:
            distribute(module, plan.options())
        except DistIRError as error:
            assert isinstance(result, Impossible)
            assert result.error == " ".join(str(error).split())
            continue
        simulation = simulate(module, profiles=profiles)
        assert isinstance(result, Simulated), plan
        step = Step.of(simulation)
        assert result.step_time_s == step.seconds, plan
        assert result.peak_memory_bytes == step.peak_bytes, plan
        assert result.reserved_memory_bytes == step.reserved_bytes, plan
        possible.append(result)
    return possible


SCHEDULES = ("", "gpipe", "zb-h1", "interleaved-1f1b", "zbv", "dualpipev")


def _refuse_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise AssertionError("the program of a pipeline was made")

    monkeypatch.setattr(evaluate, "pipeline_ops", refuses)


@pytest.mark.parametrize(
    "kind",
    chosen(["inference", "mlp", "gpt", "dropout"], ["inference", "dropout"]),
)
def test_random_plans(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules, ZeRO and recomputation: time and memory to the last bit, with no program made."""
    _refuse_programs(monkeypatch)
    rng = random.Random(kind)
    plans: list[GridPlan] = []
    count = 2 if kind in ("inference", "mlp") else 1
    for d, t, p in rng.sample([(2, 1, 2), (1, 2, 2), (1, 1, 4), (2, 2, 2)], count):
        zero = rng.choice([0, 1, 3]) if d > 1 and kind != "inference" else 0
        for k in (2, 4):
            schedule = "" if kind == "inference" else rng.choice(SCHEDULES)
            plans.append(
                GridPlan(BATCH, d=d, t=t, p=p, k=k, zero=zero, schedule=schedule)
            )
    assert len(_check(_source(kind), plans)) == len(plans)


@pytest.mark.parametrize(
    ("kind", "machine"),
    each_once(
        ["inference", "mlp", "gpt", "dropout"],
        [
            ("dgx2", "V100"),
            ("dgx-a100", "A100-megatron"),
            ("dgx-h100", "H100-compiled"),
        ],
    ),
)
def test_profiles(
    kind: str, machine: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of an op depends on those around it, in stages and in the entry function."""
    _refuse_programs(monkeypatch)
    cluster, profile = machine
    forward, rng = kind == "inference", random.Random(kind)
    plans = [
        GridPlan(
            BATCH,
            d=2,
            t=2,
            p=2,
            k=k,
            zero=0 if forward else rng.choice([0, 1, 2, 3]),
            schedule="" if forward else rng.choice(["", "gpipe", "zb-h1"]),
            buckets=buckets,
        )
        for k, buckets in ((2, False), (4, True))
        if IS_THOROUGH or buckets != forward
    ]
    source = _source(kind, load_cluster(cluster))
    assert len(_check(source, plans, [load_profile(profile)])) == len(plans)


PYTORCH: dict[str, dict[str, Any]] = {
    "DDP": {"d": 2},
    "FSDP": {"d": 2, "zero": 3},
    "FSDP ahead": {"d": 2, "zero": 3, "overlap": True},
    "FSDP, checkpoints": {"d": 2, "zero": 3, "checkpoint": "full", "overlap": True},
    "accumulated": {"d": 2, "k": 2, "zero": 3},
    "DDP in a pipeline": {"d": 2, "p": 2, "k": 2},
    "buckets in a pipeline": {"d": 2, "p": 2, "k": 4, "buckets": True},
    "FSDP in a pipeline": {"d": 2, "p": 2, "k": 2, "zero": 3},
    "pipeline, checkpoints": {
        "d": 2, "p": 2, "k": 2, "zero": 3, "checkpoint": "full",
    },
    "ZeRO 1 in a pipeline": {"d": 2, "p": 2, "k": 2, "zero": 1},
    "split layers": {"d": 2, "t": 2, "p": 2, "k": 4, "schedule": "zb-h1"},
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    chosen([*PYTORCH], ["FSDP ahead", "DDP in a pipeline", "FSDP in a pipeline"]),
)
def test_memory_of_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What FSDP, DDP and the optimizer take beside a program's values counts in searches too."""
    plan = GridPlan(BATCH, **PYTORCH[name])
    if plan.is_pipelined:
        _refuse_programs(monkeypatch)
    pytorch = load_profile("A100-pytorch")
    plain = replace(
        pytorch, memory=replace(pytorch.memory, fsdp=False, ddp=False, foreach=False)
    )
    source = _source("few", load_cluster("dgx-a100"))
    (more,) = _check(source, [plan], [pytorch])
    (less,) = _check(source, [plan], [plain])
    # Functions of micro-batches gather parameters themselves, and keep none for FSDP.
    counts = not plan.zero or plan.k == 1
    assert (more.peak_memory_bytes > less.peak_memory_bytes) == counts


def test_accumulation_and_the_same_plan_again() -> None:
    plans = [GridPlan(BATCH, d=2, k=k) for k in (2, 4, 2)]
    assert len(_check(_source("mlp"), plans)) == 3


@pytest.mark.parametrize("kind", ["inference", "mlp"])
def test_many_micro_batches(kind: str) -> None:
    """Ops at the end use results of calls that are far away."""
    plans = [GridPlan(BATCH, p=2, k=BATCH)]
    profiles = [load_profile("V100")]
    assert len(_check(_source(kind), plans, profiles)) == 1


def test_layouts_that_depend_on_the_number_of_micro_batches() -> None:
    """What ZeRO 3 gathers for each of them is weighed for each number of them."""
    numbers = (2, 4, 8) if IS_THOROUGH else (2, 4)
    plans = [GridPlan(BATCH, d=2, t=2, p=2, k=k, zero=3) for k in numbers]
    assert len(_check(_source("few"), plans)) == len(plans)


@pytest.mark.parametrize("kind", sampled(["mlp", "gpt"], 2))
def test_messages(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of collectives, in stages, in what these call and in the entry function."""
    _refuse_programs(monkeypatch)
    options: list[dict[str, Any]] = [
        {"d": 2, "p": 2, "k": 2},
        {"d": 2, "t": 2, "p": 2, "k": 4, "schedule": "interleaved-1f1b"},
        {"d": 2, "p": 2, "k": 2, "zero": 3},
        {"d": 2, "p": 2, "k": 4, "zero": 1},
        {"d": 4, "k": 2, "checkpoint": "full"},
    ]
    if not IS_THOROUGH:
        options = [options[1], options[2]]
    for each in options:
        plans = [GridPlan(BATCH, **each, buckets=buckets) for buckets in (False, True)]
        slow, fast = _check(_source(kind), plans)
        assert fast.step_time_s < slow.step_time_s


def test_messages_without_a_pipeline() -> None:
    plain = [GridPlan(BATCH, d=2, t=2)] if IS_THOROUGH else []
    plans = [*plain, GridPlan(BATCH, d=2, t=2, zero=3, overlap=True)]
    assert len(_check(_source("few"), plans)) == len(plans)


def _two_kinds(first: range) -> ClusterOp:
    """Four devices, of which the first ones are slower."""
    rest = [i for i in range(4) if i not in first]
    kinds = [
        KindOp(
            name,
            devices,
            memory=10**9,
            memory_bandwidth=1e11,
            peak_flops={"f32": rate, "default": rate},
            launch_latency=1e-6,
        )
        for name, devices, rate in (("slow", list(first), 1e11), ("fast", rest, 4e11))
    ]
    links = [
        LinkOp("near", 2, bandwidth=1e10, latency=1e-6),
        LinkOp("far", 4, bandwidth=1e9, latency=1e-5),
    ]
    return ClusterOp("c", kinds, links)


@pytest.mark.parametrize("slow", sampled([range(1), range(2)], 2))
def test_devices_that_differ(slow: range) -> None:
    """Between stages, which are then no longer alike; and within one, which takes the program."""
    plans = [GridPlan(BATCH, d=2, p=2, k=k) for k in (2, 4)]
    assert len(_check(_source("mlp", _two_kinds(slow)), plans)) == 2


def test_stages_whose_links_differ() -> None:
    """Nodes of three devices: the second of three pairs lies across two of them."""
    uneven = ClusterOp(
        "c",
        [
            KindOp(
                "unit",
                list(range(6)),
                memory=10**9,
                memory_bandwidth=1e11,
                peak_flops={"f32": 1e11, "default": 1e11},
                launch_latency=1e-6,
            )
        ],
        [
            LinkOp("near", 3, bandwidth=1e10, latency=1e-6),
            LinkOp("far", 6, bandwidth=1e8, latency=1e-4),
        ],
    )
    assert len(_check(_source("mlp", uneven), [GridPlan(BATCH, t=2, p=3, k=2)])) == 1
