"""
Under overlap the parameters of ZeRO 3 and of hybrid sharding come ahead of the layer that needs
them, and no more than the gradients of two layers wait to be scattered.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import pytest
from support.cost_programs import cluster, verified
from support.thoroughness import each_once, sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllGatherOp, AllReduceOp
from distir.dialects.dist_attributes import ASYNCHRONOUS
from distir.frontends.models.basic import build_gpt
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.distribution.options import DistributionOptions
from distir.program import entry_function, reachable_functions

ON = cluster(8, levels=((2, 4e4, 0.0), (8, 2e4, 0.0)), peak=1e6)
SHARDED = {"d": 4, "zero": 3}
HYBRID = {"r": 2, "d": 2, "zero": 3}


@functools.cache
def step(layers: int) -> ModuleOp:
    module = build_gpt(layers, 32, 4, 64, 16, 16)
    DifferentiatePass(optimizer="adam").apply(Context(), module)
    return module


def distributed(layers: int, **options: Any) -> ModuleOp:
    module = step(layers).clone()
    block = module.body.block
    assert block.first_op is not None
    block.insert_op_before(ON.clone(), block.first_op)
    return verified(module, DistributePass(**options))


@pytest.mark.parametrize("options", [SHARDED, HYBRID])
def test_gathers_are_outside_of_layers(options: dict[str, Any]) -> None:
    """Those of transposed parameters too, which a backward multiplies by."""
    module = distributed(3, **options, overlap=True)
    *called, entry = reachable_functions(module)
    for function in called:
        gathers = [op for op in function.body.block.ops if isinstance(op, AllGatherOp)]
        assert not gathers, function.sym_name.data
    gathers = [op for op in entry.body.block.ops if isinstance(op, AllGatherOp)]
    assert sum(ASYNCHRONOUS in op.attributes for op in gathers) > len(gathers) / 2


@pytest.mark.parametrize("options", [SHARDED, HYBRID])
def test_a_layer_is_gathered_before_the_gradients_in_front_of_it_are_scattered(
    options: dict[str, Any],
) -> None:
    """Each call in the backward has the parameters of the next one started before it."""
    module = distributed(4, **options, overlap=True)
    ops = list(entry_function(module).body.block.ops)
    place = {op: i for i, op in enumerate(ops)}
    calls = [op for op in ops if isinstance(op, CallOp)]
    for before, call in pairwise(calls[4:]):
        sources = [v.owner for v in call.operands]
        gathers = [op for op in sources if isinstance(op, AllGatherOp)]
        assert gathers and all(place[op] < place[before] for op in gathers)


@pytest.mark.parametrize("options", sampled([SHARDED, HYBRID], 2))
def test_gradients_of_two_layers_are_there(options: dict[str, Any]) -> None:
    """What overlap adds to the peak does not grow with the number of layers."""
    added: list[int] = []
    for layers in (3, 5):
        plain, overlapped = (
            max(simulate(distributed(layers, **options, overlap=o)).peak_memory_bytes)
            for o in (False, True)
        )
        added.append(overlapped - plain)
    layer = 12 * 32 * 32 * 4
    assert added[1] - added[0] < layer / 4


def test_the_sum_over_groups_waits_for_no_scattering() -> None:
    """It starts one layer later, in the caller, and the scattering is asynchronous."""
    module = distributed(4, **HYBRID, overlap=True)
    *called, entry = reachable_functions(module)
    collectives = [
        op
        for function in called
        for op in function.body.block.ops
        if isinstance(op, CollectiveOp)
    ]
    assert collectives
    assert not any(isinstance(op, AllReduceOp) for op in collectives)
    assert all(ASYNCHRONOUS in op.attributes for op in collectives)
    ops = list(entry.body.block.ops)
    calls = [op for op in ops if isinstance(op, CallOp)]
    for op in ops:
        if isinstance(op, AllReduceOp) and isinstance(op.source.owner, CallOp):
            number = calls.index(op.source.owner)
            assert number + 1 == len(calls) or (
                ops.index(op) > ops.index(calls[number + 1])
            )


@pytest.mark.parametrize(
    ("zero", "k", "devices"),
    each_once([1, 2, 3], [4, 1], [{"d": 4}, {"r": 2, "d": 2}]),
)
def test_overlap_is_never_slower_than_its_absence(
    zero: int, k: int, devices: dict[str, int]
) -> None:
    plain, overlapped = (
        simulate(distributed(2, **devices, k=k, zero=zero, overlap=o))
        for o in (False, True)
    )
    assert overlapped.step_time_s <= plain.step_time_s


def test_micro_batches_do_not_gather_parameters_again() -> None:
    """Stage 1 gathers once a step, whether communication overlaps or not."""

    def gathers(overlap: bool) -> int:
        module = distributed(2, d=4, k=4, zero=1, overlap=overlap)
        functions = {f.sym_name.data: f for f in reachable_functions(module)}

        def count(name: str) -> int:
            ops = functions[name].body.block.ops
            inner = sum(
                count(op.callee.string_value()) for op in ops if isinstance(op, CallOp)
            )
            return inner + sum(isinstance(op, AllGatherOp) for op in ops)

        return count("main")

    assert gathers(True) == gathers(False)


def test_the_options_that_may_gather_first() -> None:
    from distir.planning.distribution.distribute import may_gather_first

    def options(**given: Any) -> DistributionOptions:
        return DistributionOptions(d=4, overlap=True, **given)

    assert may_gather_first(options(zero=1))
    assert may_gather_first(options(zero=1, k=4))
    assert not may_gather_first(options(zero=3))
    assert not may_gather_first(options(zero=1, overlapped=("dp",)))
