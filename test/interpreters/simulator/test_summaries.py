"""Summarised calls and one device for all of a mesh: the same result as op by op."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.asynchronous import make_asynchronous
from support.cost_programs import MACHINES, STRATEGIES, cluster, distributed, uneven
from support.thoroughness import sampled, tries
from support.training_programs import training_gpt, training_mlp
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.interpreters.simulator import Simulation, simulate
from distir.transforms.memory.checkpoint_policies import POLICIES


def assert_same(module: ModuleOp) -> Simulation:
    """Simulates it both ways; times are equal to rounding, all else exactly."""
    short, flat = simulate(module), simulate(module, flat=True)
    assert short.devices == flat.devices
    assert short.ops == flat.ops
    assert short.peak_memory_bytes == flat.peak_memory_bytes
    assert short.communication_bytes == flat.communication_bytes
    assert short.step_time_s == pytest.approx(flat.step_time_s, rel=1e-12)
    assert short.flops == pytest.approx(flat.flops, rel=1e-12)
    for name in (
        "compute_s",
        "communication_s",
        "transit_s",
        "idle_s",
        "seconds_at_peak",
    ):
        assert getattr(short, name) == pytest.approx(
            getattr(flat, name), rel=1e-9, abs=1e-9 * flat.step_time_s
        )
    return short


@pytest.mark.parametrize("options", sampled(STRATEGIES, 3), ids=str)
def test_a_training_step(options):
    assert_same(distributed(training_gpt(dropout=0.1), MACHINES, **options))


@given(
    degrees=st.tuples(*[st.sampled_from([1, 2, 4])] * 3).filter(
        lambda dtp: dtp[0] * dtp[1] * dtp[2] <= 16
    ),
    k=st.sampled_from([1, 2, 4]),
    zero=st.integers(0, 3),
    checkpoint=st.sampled_from(POLICIES),
    blocking=st.booleans(),
)
@settings(max_examples=tries(15), deadline=None)
def test_random_strategies(degrees, k, zero, checkpoint, blocking):
    d, t, p = degrees
    if d * k > 8 or p > 2:
        return
    module = distributed(
        training_mlp(),
        MACHINES,
        d=d,
        t=t,
        p=p,
        k=k,
        zero=zero if d > 1 else 0,
        checkpoint=checkpoint,
        blocking_sends=blocking,
    )
    assert_same(module)


ONE_LINK = cluster(
    64,
    levels=((64, 1e8, 1e-9),),
    peak=1e12,
    bandwidth=1e11,
    launch=1e-6,
    memory=10**9,
)
"""Devices whose groups share all links, which bound what they send."""

SHARING = [{"d": 2, "t": 2, "zero": 3}, {"d": 2, "t": 2, "p": 2, "k": 2}]
"""Strategies with groups over several axes."""


@functools.cache
def blocking(strategy: int) -> tuple[ModuleOp, Simulation]:
    if strategy < len(STRATEGIES):
        options, on = STRATEGIES[strategy], MACHINES
    else:
        options, on = SHARING[strategy - len(STRATEGIES)], ONE_LINK
    module = distributed(training_gpt(), on, **options, buckets=False)
    return module, simulate(module)


@given(
    strategy=st.integers(0, len(STRATEGIES) + len(SHARING) - 1),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=tries(20), deadline=None)
def test_random_asynchronous_programs(strategy: int, seed: int):
    module, before = blocking(strategy)
    module = module.clone()
    make_asynchronous(module, seed)
    result = assert_same(module)
    assert result.communication_bytes == before.communication_bytes
    assert result.compute_s == before.compute_s


def test_a_slow_device_is_simulated_for_itself():
    result = assert_same(distributed(training_mlp(), uneven(), d=4))
    assert result.compute_s[2] > 2 * result.compute_s[0]
    assert result.idle_s[0] > 0
    result = assert_same(distributed(training_mlp(), uneven(), p=2, k=2, d=2))
    assert result.compute_s[2] > 2 * result.compute_s[3]


def test_groups_on_different_links_are_simulated_one_by_one():
    """Of three groups of two, the middle one crosses nodes of three devices."""
    links = (
        LinkOp("inside", 3, bandwidth=1e10, latency=1e-6),
        LinkOp("outside", 6, bandwidth=1e8, latency=1e-5),
    )
    kind = KindOp(
        "unit",
        range(6),
        memory=10**9,
        memory_bandwidth=1e11,
        peak_flops={"default": 1e12},
        launch_latency=0.0,
    )
    module = training_mlp(batch=12)
    result = assert_same(distributed(module, ClusterOp("c", [kind], links), d=3, t=2))
    assert len(set(result.communication_s)) > 1
