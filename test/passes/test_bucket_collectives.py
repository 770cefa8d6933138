"""Bucketed programs compute the same in fewer messages, and have one order for all ranks."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
from support.cost_programs import MACHINES, STRATEGIES, distributed, verified
from support.pipelines import arguments_of, assert_equal_results
from support.thoroughness import sampled
from support.training_programs import training_gpt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from distir.dialects.collective_ops.base import CollectiveOp, bucket_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.hardware import load_cluster
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.bucket_collectives import BucketCollectivesPass
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.plans.programs import replace_cluster
from distir.program import entry_function, functions
from distir.transforms.projection import devices_of, project

MORE: list[dict[str, Any]] = [
    {"d": 4, "zero": 3},
    {"d": 4, "overlap": True},
    {"d": 2, "t": 2, "zero": 3, "sequence_parallel": True, "overlap": True},
    {"d": 2, "p": 2, "k": 2, "zero": 3},
    {"d": 2, "p": 2, "k": 2, "overlap": True},
]
STEPS: list[dict[str, Any]] = [*STRATEGIES, *MORE]
CHECKED = range(len(STRATEGIES), len(STEPS))


def bucketed(module: ModuleOp, **options: Any) -> ModuleOp:
    """A verified copy after the pass."""
    return verified(module, BucketCollectivesPass(**options))


@functools.cache
def step() -> ModuleOp:
    return training_gpt()


@functools.cache
def pair(number: int) -> tuple[ModuleOp, ModuleOp]:
    """A distributed training step, and the same after the pass."""
    before = distributed(step(), MACHINES, **STEPS[number], buckets=False)
    return before, bucketed(before)


def messages(module: ModuleOp) -> Counter[str]:
    """How many messages of each kind the functions of a program name."""
    return Counter(
        op.name
        for op in module.walk()
        if isinstance(op, CollectiveOp) and not op.is_joined
    )


@pytest.mark.parametrize("number", sampled(range(len(STEPS)), 6))
def test_fewer_messages_of_as_many_bytes(number: int) -> None:
    module, fewer = pair(number)
    before, after = simulate(module), simulate(fewer)
    assert after.step_time_s <= before.step_time_s * (1 + 1e-12)
    assert after.communication_bytes == before.communication_bytes
    options = STEPS[number]
    if options.get("d", 1) > 1:
        assert messages(fewer).total() < messages(module).total()
        if not options.get("overlap"):  # beside computation latency may cost nothing
            assert after.step_time_s < before.step_time_s


@pytest.mark.parametrize("number", sampled(CHECKED, 3))
def test_results_stay(number: int) -> None:
    module, fewer = pair(number)
    arguments = arguments_of(module)
    expected = run_program(module, arguments)
    assert_equal_results(module, expected, run_program(fewer, arguments), 1e-6)


@pytest.mark.parametrize("number", sampled(CHECKED, 3))
def test_all_ranks_of_a_group_send_the_same_messages(number: int) -> None:
    _, module = pair(number)
    orders: dict[tuple[int, ...], list[tuple[str, ...]]] = {}
    for rank in devices_of(module):
        program = project(module, rank)
        program.verify()
        found: dict[tuple[int, ...], list[tuple[str, ...]]] = {}
        collect(program, entry_function(program).sym_name.data, found)
        for group, order in found.items():
            assert orders.setdefault(group, order) == order
    assert any(len(message) > 1 for order in orders.values() for message in order)


def collect(
    module: ModuleOp, name: str, found: dict[tuple[int, ...], list[tuple[str, ...]]]
) -> None:
    """The messages of a rank's program in their order, by group: the types they bring."""
    for op in functions(module)[name].body.block.ops:
        if isinstance(op, CallOp):
            collect(module, op.callee.string_value(), found)
        elif isinstance(op, CollectiveOp) and op.CAN_JOIN and not op.is_joined:
            assert op.ranks is not None
            types = tuple(str(o.result.type) for o in bucket_of(op))
            found.setdefault(op.ranks, []).append((op.name, *types))


def test_a_bucket_takes_the_time_of_one_message() -> None:
    """Of all its bytes: the latency is paid once, the bandwidth for each byte."""
    module, fewer = pair(STEPS.index({"d": 4, "zero": 3}))
    before, after = simulate(module), simulate(fewer)
    saved = messages(module).total() - messages(fewer).total()
    assert saved > 0
    # 4 devices: two levels of two. A pass over a level takes its latency once; gradients
    # and parameters take one pass (reduce-scatter, all-gather) each.
    gained = before.step_time_s - after.step_time_s
    per_message = 1e-6 + 2e-6
    runs = gained / per_message
    assert runs == pytest.approx(round(runs), abs=1e-3)
    assert runs >= saved


def test_sizes() -> None:
    module, _ = pair(STEPS.index({"d": 4, "zero": 3}))
    small, large = bucketed(module, megabytes=1e-6), bucketed(module, megabytes=1e6)
    assert messages(small) == messages(module)
    assert messages(large).total() < messages(module).total()
    again = bucketed(large)
    assert str(again) == str(large)


def called_messages(module: ModuleOp, name: str) -> int:
    """How many messages a call of a function sends."""
    count = 0
    for op in functions(module)[name].body.block.ops:
        if isinstance(op, CallOp):
            count += called_messages(module, op.callee.string_value())
        elif isinstance(op, CollectiveOp) and op.CAN_JOIN and not op.is_joined:
            count += 1
    return count


@pytest.mark.slow
def test_gpt2_sends_few_messages() -> None:
    """So that data parallelism alone is faster on 8 A100s than with tensor parallelism."""
    sequential = build_gpt(12, 768, 12, 50304, 64, 512, dtype="bf16")
    DifferentiatePass().apply(Context(), sequential)
    replace_cluster(sequential, load_cluster("dgx-a100", 8))
    seconds: list[float] = []
    strategies: list[dict[str, Any]]
    strategies = [{"d": 8}, {"d": 8, "overlap": True}, {"d": 4, "t": 2}]
    for options in strategies:
        module = sequential.clone()
        DistributePass(**options).apply(Context(), module)
        seconds.append(simulate(module).step_time_s)
        if options["d"] == 8:
            entry = entry_function(module).sym_name.data
            assert 1 < called_messages(module, entry) <= 15
    assert max(seconds[:2]) < seconds[2]


def test_bad_options() -> None:
    module, _ = pair(STEPS.index({"d": 4, "zero": 3}))
    with pytest.raises(DistIRError, match="choose a number above 0"):
        bucketed(module, megabytes=0)
