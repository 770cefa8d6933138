"""Computations that are slower beside communication, as a profile may say (`contention`)."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.asynchronous import collective, main, make_asynchronous, relu
from support.cost_programs import MACHINES, STRATEGIES, cluster, distributed, parse
from support.thoroughness import tries
from support.training_programs import training_gpt
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.interpreters.simulator import Simulation, simulate
from distir.interpreters.simulator.profiles.files import load_profile, profile_names
from distir.interpreters.simulator.profiles.profile import Profile

DEVICES = cluster(4, levels=((4, 1.0, 0.0),))

LINK = {"bandwidth": 1.0, "overhead": 0.0, "latency": 0.0, "source": "made up"}
ONE = {"bandwidth": 1.0, "overhead": 1.0, "source": "made up"}
DATA: dict[str, Any] = {
    "description": "every op takes a second, beside a collective two",
    "device": "unit",
    "dispatch": {"op": 0.0, "collective": 0.0, "source": "made up"},
    "compute": {
        "default": {
            "contraction": {"efficiency": 1.0, **ONE},
            "elementwise": ONE,
        }
    },
    "links": {f"level{i}": LINK for i in range(3)},
    "contention": {"share": 0.5, "source": "made up"},
}
PROFILE = Profile.parse("p", DATA)


def both_ways(module: ModuleOp, on: ClusterOp | None, profile: Profile) -> Simulation:
    """Returns the simulation of a program, which is the same op by op."""
    short = simulate(module, on, profiles=(profile,))
    flat = simulate(module, on, flat=True, profiles=(profile,))
    for name in ("step_time_s", "compute_s", "communication_s", "idle_s", "transit_s"):
        assert getattr(short, name) == pytest.approx(
            getattr(flat, name), rel=1e-9, abs=1e-9 * flat.step_time_s
        )
    return short


def gathered_beside(ops: int) -> Simulation:
    """A gather of 8 seconds, and so many ops of a second before its result is needed."""
    body = collective("all_gather", "g", "s")
    for i in range(ops):
        body += relu(f"a{i}", f"a{i - 1}" if i else "x")
    text = main(body + relu("b", "g"), "b")
    return both_ways(parse(text), DEVICES, PROFILE)


def test_what_is_hidden_takes_longer() -> None:
    """Three ops take six of the eight seconds; the device waits for two."""
    result = gathered_beside(3)
    assert result.step_time_s == 8 + 1
    assert result.compute_s == [3 * 2 + 1] * 2
    assert result.idle_s == result.transit_s == [2.0, 2.0]


def test_what_comes_after_the_collective_takes_as_long_as_alone() -> None:
    """Of ten ops four fit beside the collective, and half of none."""
    result = gathered_beside(10)
    assert result.step_time_s == 8 + 6 + 1
    assert result.compute_s == [15.0, 15.0]
    assert result.idle_s == [0.0, 0.0]


def test_an_op_that_the_collective_ends_within() -> None:
    """Of a product of 17 s, 4 s of work are done in the collective's 8 s: 8 + 13 s."""
    data = copy.deepcopy(DATA)
    data["compute"]["default"]["elementwise"]["overhead"] = 17.0
    body = collective("all_gather", "g", "s") + relu("a", "x") + relu("b", "g")
    module = parse(main(body, "b"))
    result = both_ways(module, DEVICES, Profile.parse("p", data))
    assert result.compute_s == [8 + 13 + 17] * 2


def test_blocking_collectives_take_nothing_from_computations() -> None:
    body = collective("all_gather", "g", "s", start=False) + relu("a", "x")
    result = both_ways(parse(main(body + relu("b", "g"), "b")), DEVICES, PROFILE)
    assert result.compute_s == [2.0, 2.0]


@functools.cache
def strategy_of(number: int) -> ModuleOp:
    """Returns a training step distributed by one of the strategies."""
    return distributed(training_gpt(), MACHINES, **STRATEGIES[number], buckets=False)


@given(strategy=st.integers(0, len(STRATEGIES) - 1), seed=st.integers(0, 10**6))
@settings(max_examples=tries(10), deadline=None)
def test_random_programs_with_summaries_and_op_by_op(strategy: int, seed: int) -> None:
    module = strategy_of(strategy).clone()
    alone = simulate(module, MACHINES, profiles=(PROFILE,))
    make_asynchronous(module, seed)
    beside = both_ways(module, MACHINES, PROFILE)
    assert sum(beside.compute_s) >= sum(alone.compute_s) * (1 - 1e-9)


@pytest.mark.parametrize("share", [1.0, -0.1, float("nan")])
def test_a_share_is_below_one(share: float) -> None:
    data = copy.deepcopy(DATA) | {"contention": {"share": share, "source": "made up"}}
    with pytest.raises(DistIRError, match="contention"):
        Profile.parse("p", data)


def test_a_share_has_a_source() -> None:
    data = copy.deepcopy(DATA) | {"contention": {"share": 0.1}}
    with pytest.raises(DistIRError, match="source"):
        Profile.parse("p", data)


@pytest.mark.parametrize("name", profile_names())
def test_built_in_profiles_slow_down_by_what_was_measured(name: str) -> None:
    """By 18.9 % in the mean (arXiv 2507.03114); of V100 nothing is known."""
    found = load_profile(name)
    share = 0 if found.device.startswith("V100") else 1 - 1 / 1.189
    assert found.contention == pytest.approx(share, abs=1e-3)
