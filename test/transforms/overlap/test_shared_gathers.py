"""ZeRO 1 and 2 gather a parameter once in a step, and the first micro-batch can run beside it."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
from support.cost_programs import cluster, verified
from support.pipelines import assert_same
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.dist_attributes import ASYNCHRONOUS
from distir.frontends.models.basic import build_gpt
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.program import entry_function, functions
from distir.transforms.overlap.shared_gathers import gather_once

PLANS: dict[str, dict[str, Any]] = {
    "one stage": {"d": 2, "k": 4, "zero": 1},
    "two ranks": {"d": 2, "p": 2, "k": 4, "zero": 1},
    "four stages": {"d": 2, "p": 2, "k": 2, "zero": 2, "schedule": "interleaved-1f1b"},
    "a V of stages": {"d": 2, "p": 2, "k": 2, "zero": 2, "schedule": "zbv"},
    "whole gradients": {"d": 2, "k": 2, "zero": 2, "no_sync": True},
    "again in the backward": {"d": 2, "k": 2, "zero": 1, "checkpoint": "full"},
    "split otherwise too": {"d": 2, "t": 2, "k": 2, "zero": 1},
}


@functools.cache
def step(optimizer: str) -> ModuleOp:
    module = build_gpt(3, 8, 2, 16, 8, 8)
    DifferentiatePass(optimizer=optimizer).apply(Context(), module)
    return module


def gathers(module: ModuleOp) -> Counter[str]:
    """How often the program gathers over "d" alone, by the type of the result."""
    known = functions(module)

    def count(name: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for op in known[name].body.block.ops:
            if isinstance(op, CallOp):
                total += count(op.callee.string_value())
            elif isinstance(op, AllGatherOp) and [a.data for a in op.axes] == ["d"]:
                total[str(op.result.type)] += 1
        return total

    return count(entry_function(module).sym_name.data)


@pytest.mark.parametrize("plan", chosen(PLANS, quick=["two ranks"]))
def test_an_optimizer_outside_gets_the_same_gradients(plan: str) -> None:
    """
    Its parameters are stored split. Each is gathered once on each stage that uses it:
    the embedding, which the head shares, may be on two.
    """
    found = assert_same(step("none"), **PLANS[plan])
    parameters = sum(
        1
        for argument in found_parameters(found)
        if "{d" in argument or ", d" in argument
    )
    assert parameters > 20
    assert 20 < gathers(found).total() <= parameters + 1
    assert not gather_once(found, ("d", "e")), "nothing is left to share"


def found_parameters(module: ModuleOp) -> list[str]:
    """The types of the parameters of a program."""
    entry = entry_function(module)
    return [
        str(arg.type)
        for arg, own in zip(entry.body.block.args, entry.arg_attrs or (), strict=True)
        if "parameter" in str(own)
    ]


SLOW = cluster(8, levels=((8, 2e3, 0.0),), peak=1e6)
"""A cluster whose links take about as long for parameters as its devices for a micro-batch."""


@pytest.mark.parametrize(
    "plan",
    # In the V, which has a stage of its first and last layers, both take as long.
    chosen([p for p in PLANS if p != "a V of stages"], quick=["one stage"]),
)
def test_the_first_micro_batch_runs_beside_the_gathers(plan: str) -> None:
    """
    They are asynchronous and in the first calls, or in front of those that wait for
    another stage; the step is faster than one that gathers at its end.
    """

    def distributed(**options: Any) -> ModuleOp:
        module = step("adam").clone()
        first = module.body.block.first_op
        assert first is not None
        module.body.block.insert_op_before(SLOW.clone(), first)
        return verified(module, DistributePass(**PLANS[plan], **options))

    late = distributed(overlap=True, overlapped=("dp", "pp", "tp"))
    early = distributed(overlap=True)
    assert simulate(early).step_time_s < simulate(late).step_time_s
    assert gathers(early).total() <= gathers(late).total() + 1
    first = [
        op
        for name, function in functions(early).items()
        if "_and_gather" in name
        for op in function.body.block.ops
        if isinstance(op, AllGatherOp)
    ]
    assert first
    assert any(ASYNCHRONOUS in op.attributes for op in first)


@pytest.mark.parametrize("plan", chosen(PLANS, quick=["four stages"]))
def test_results_stay_the_same(plan: str) -> None:
    """With the optimizer in the program, which updates parts of parameters."""
    assert_same(step("adam"), overlap=True, **PLANS[plan])
