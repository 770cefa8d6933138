"""
Hybrid sharding: ZeRO splits what it splits over the devices of a group, and every group holds
all of it (MiCS, Zhang et al. 2022; `HYBRID_SHARD` of FSDP, Zhao et al. 2023).
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from closed_forms.chains import chain
from closed_forms.towers import bytes_sent, on_each_device, peak_memory
from closed_forms.towers import distributed as on_dgx
from support.pipelines import assert_same, distributed
from support.thoroughness import chosen, each_once
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllReduceOp
from distir.dialects.device import ClusterOp
from distir.dialects.tensors import rank_of
from distir.frontends.models.basic import build_gpt
from distir.hardware.description import ClusterDescription
from distir.passes.differentiate import DifferentiatePass
from distir.planning.auto.auto import auto_search
from distir.planning.grid import Programs, run
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import GridPlan, Space
from distir.planning.plans.result import simulated

MEMORY = 1_000_000_000
"""Bytes of a device of the slow cluster."""

PLANS: list[dict[str, Any]] = [
    {"r": 2, "d": 2},
    {"r": 2, "d": 3},
    {"r": 2, "d": 2, "t": 2, "sequence_parallel": True},
    {"r": 2, "d": 2, "k": 2},
    {"r": 2, "d": 2, "p": 2, "k": 2},
    {"r": 2, "d": 2, "k": 2, "overlap": True, "checkpoint": "full"},
]


def step(batch: int, clip: float) -> ModuleOp:
    module = build_gpt(2, 16, 4, 32, batch, 8)
    DifferentiatePass(clip=clip).apply(Context(), module)
    return module


@pytest.mark.parametrize(
    ("options", "zero"),
    chosen(product(PLANS, (1, 2, 3)), [(PLANS[1], 2), (PLANS[4], 3), (PLANS[2], 1)]),
)
def test_results_stay(options: dict[str, Any], zero: int) -> None:
    batch = 2 * options["r"] * options["d"] * options.get("k", 1)
    assert_same(step(batch, 0.1), **options, zero=zero)


@pytest.mark.parametrize(("zero", "k"), each_once([1, 2, 3], [1, 2]))
def test_bytes_that_states_take(zero: int, k: int) -> None:
    """The forms of ZeRO, with the devices of a group as N."""
    r, d, width = 2, 8, 1 << 14
    few, more = (
        on_each_device(
            peak_memory,
            on_dgx(chain([width] * n, 16 * k), r=r, d=d, k=k, zero=zero, buckets=False),
        )
        for n in (4, 6)
    )
    parameters = 2 * width * width
    whole, split = {1: (4, 12), 2: (2, 14), 3: (0, 16)}[zero]
    # With several micro-batches, the activations of one sample are kept for two matrices.
    kept = 2 * 2 * width if k > 1 else 0
    assert more - few == whole * parameters + split * parameters // d + kept


@pytest.mark.parametrize(
    ("k", "stage"), each_once([1, 4], [(1, 0, 2), (2, 1, 1), (3, 3, 0)])
)
def test_bytes_that_are_sent(k: int, stage: tuple[int, int, int]) -> None:
    """
    What ZeRO sends in a group of d, and for all micro-batches together an all-reduce of the
    parts of gradients between r groups: 2 (r - 1) / r of P / d.
    """
    zero, each, once = stage
    r, d, width = 4, 8, 128
    few, more = (
        on_each_device(
            bytes_sent, on_dgx(chain([width] * n, 64 * k), r=r, d=d, k=k, zero=zero)
        )
        for n in (3, 5)
    )
    parameters = 2 * 2 * width * width
    inside = (each * k + once) * parameters * (d - 1) // d
    assert more - few == inside + 2 * parameters * (r - 1) // (r * d)


def test_groups_are_neighbours() -> None:
    """Between groups go parts of gradients, and numbers; all else stays in a group."""
    module = distributed(step(8, 0.0), r=2, d=4, zero=3, k=1)
    between = [
        op
        for function in module.body.block.ops
        for op in function.walk()
        if isinstance(op, CollectiveOp) and "r" in op.axis_names
    ]
    assert between
    assert all(isinstance(op, AllReduceOp) for op in between)
    large = [op for op in between if rank_of(op.operands[0].type)]
    assert large and all(op.axis_names == ("r",) for op in large)


def test_the_grid_has_numbers_of_groups() -> None:
    options = SearchOptions(r=(1, 2, 4), zero=(0, 3), micro_batches=(1,))
    plans = Space.of(options, (16,), True, 8, [(4, 1, 1), (2, 1, 1)]).plans()
    assert {(p.r, p.d, p.zero) for p in plans if p.r > 1} == {
        (2, 4, 3),
        (2, 2, 3),
        (4, 4, 3),
        (4, 2, 3),
    }


def slow_network() -> ClusterOp:
    """Two nodes of four A100s with memory for a few copies only, and a slow network."""
    return ClusterDescription("slow", "A100", 2, 4, nic=1e9, memory=MEMORY).build()


def test_parameters_are_kept_inside_of_nodes() -> None:
    """
    A quarter of the model fits into a device's memory beside what is gathered, half of it
    does not; an eighth would be gathered through the network.
    """
    programs = Programs.of([chain([4096] * 5, 1 << 16)], slow_network())
    plans = [GridPlan(1 << 16, r=8 // d, d=d, zero=3) for d in (2, 4, 8)]
    found = simulated([result for some in run(programs, plans, 1) for result in some])
    results = {result.plan: result for result in found}
    half, quarter, eighth = (results[plan] for plan in plans)
    assert not half.fits and quarter.fits and eighth.fits
    assert quarter.step_time_s < eighth.step_time_s


@pytest.mark.slow
def test_the_search_keeps_parameters_inside_of_nodes() -> None:
    """What is the fastest of the plans above is the fastest of all of the grid."""
    program = chain([4096] * 5, 1 << 16)
    options = SearchOptions(
        jobs=1, zero=(3,), checkpoint=("none",), overlap=("off",), micro_batches=(1,)
    )
    search = auto_search([program], slow_network(), options)
    search.run()
    # Searched layouts, of which there is no limit to the kinds, may be faster still.
    grid = [
        r for r in simulated(search.results.values()) if isinstance(r.plan, GridPlan)
    ]
    fit = [r for r in grid if r.peak_memory_bytes <= MEMORY]
    best = min(fit, key=lambda r: r.step_time_s).plan
    assert isinstance(best, GridPlan) and (best.r, best.d) == (2, 4), str(best)
