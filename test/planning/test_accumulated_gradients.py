"""
ZeRO 2 and 3 with several micro-batches: the gradients of each are reduced and scattered, and
what adds up are parts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from closed_forms.chains import chain
from closed_forms.towers import bytes_sent, on_each_device, peak_memory
from closed_forms.towers import distributed as on_dgx
from support.pipelines import assert_same, distributed
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from distir.dialects.collective_ops.over_axes import AllReduceOp, ReduceScatterOp
from distir.dialects.dist import SendOp, layout_of
from distir.dialects.tensors import rank_of, shape_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.passes.differentiate import DifferentiatePass
from distir.planning.auto.space import AutoSpace
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import GridPlan, Space
from distir.program import entry_function, functions

SUMS = "sum"
"""What `pipeline` calls the arguments that a function adds to."""

PLANS: list[dict[str, Any]] = [
    {"d": 2, "k": 2},
    {"d": 2, "t": 2, "k": 2, "sequence_parallel": True},
    {"d": 2, "p": 2, "k": 2},
    {"d": 2, "p": 2, "k": 4, "schedule": "zb-h1"},
    {"d": 2, "k": 2, "overlap": True},
    {"d": 2, "k": 2, "checkpoint": "full"},
]


@functools.cache
def step(clip: float, dtype: str = "f32", **options: Any) -> ModuleOp:
    """The training step of a GPT whose embedding is its head, too."""
    module = build_gpt(2, 16, 4, 32, 8, 8, dtype)
    DifferentiatePass(clip=clip, **options).apply(Context(), module)
    return module


def added(module: ModuleOp) -> Iterable[Any]:
    """The tensors that functions add gradients to."""
    for function in functions(module).values():
        for argument in function.body.block.args:
            name = argument.name_hint or ""
            if name.split("_")[0] == SUMS and rank_of(argument.type):
                yield argument


@pytest.mark.parametrize(
    ("options", "zero", "clip"),
    chosen(
        product(PLANS, (2, 3), (0.0, 0.1)),
        [
            (PLANS[1], 2, 0.0),
            (PLANS[3], 3, 0.1),
            (PLANS[4], 3, 0.0),
            (PLANS[5], 2, 0.1),
        ],
    ),
)
def test_results_stay_and_parts_add_up(
    options: dict[str, Any], zero: int, clip: float
) -> None:
    module = assert_same(step(clip), **options, zero=zero)
    sums = list(added(module))
    assert sums
    for value in sums:
        layout = layout_of(value)
        assert layout is not None and "d" in layout.split_axes, value


@pytest.mark.parametrize("zero", [0, 1])
def test_other_stages_add_up_whole_gradients(zero: int) -> None:
    for value in added(distributed(step(0.0), d=2, k=2, zero=zero)):
        layout = layout_of(value)
        assert layout is not None and layout.partial_axes == ("d",), value


def test_gradients_add_up_in_the_type_that_is_asked_for() -> None:
    wide = step(0.0, "bf16", gradient_dtype="f32")
    types = {
        str(v.type.element_type) for v in added(distributed(wide, d=2, k=2, zero=2))
    }
    assert types == {"f32"}


def large(function: FuncOp, kind: type[Any]) -> list[Any]:
    """The ops of a kind in a function that take more than a number."""
    ops = (op for op in function.body.block.ops if isinstance(op, kind))
    return [op for op in ops if rank_of(op.operands[0].type)]


def test_gradients_of_tied_weights_are_sent_once_in_parts() -> None:
    """Each stage scatters its own; the part of all micro-batches goes to the other stage."""
    module = distributed(step(0.0), d=2, p=2, k=4, zero=2)
    table = [
        op
        for op in large(entry_function(module), SendOp)
        if shape_of(op.operands[0].type) == (32, 16)
    ]
    # The weight at the beginning, and the gradient at the end.
    assert len(table) == 2
    layouts = [layout_of(op.operands[0]) for op in table]
    assert sorted(x is not None and "d" in x.split_axes for x in layouts) == [0, 1]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_clipped_gradients_are_scattered(zero: int) -> None:
    """A device adds up the squares of its parts; only their sums are reduced for all."""
    module = distributed(step(0.1), d=2, zero=zero)
    entry = entry_function(module)
    assert large(entry, ReduceScatterOp)
    assert not large(entry, AllReduceOp)


def test_clipping_in_a_pipeline_sends_a_factor() -> None:
    """And no gradient goes to the stage of the factor and back."""
    sent = large(entry_function(distributed(step(0.1), d=2, p=2, k=2, zero=2)), SendOp)
    plain = large(entry_function(distributed(step(0.0), d=2, p=2, k=2, zero=2)), SendOp)
    assert len(sent) == len(plain)


def test_whole_gradients_add_up_if_asked_for() -> None:
    """And are reduced once: less is sent, and more is kept (FSDP's `no_sync`)."""
    module = assert_same(step(0.1), d=2, k=2, zero=3, no_sync=True)
    assert all(
        layout.partial_axes == ("d",)
        for layout in map(layout_of, added(module))
        if layout
    )
    with pytest.raises(DistIRError, match="k is 1; leave it out"):
        distributed(step(0.0), d=2, zero=3, no_sync=True)
    with pytest.raises(DistIRError, match="the ZeRO stage is 1"):
        distributed(step(0.0), d=2, k=2, zero=1, no_sync=True)


@pytest.mark.parametrize("k", [2, 4])
def test_bytes_with_whole_gradients(k: int) -> None:
    """2 P of gradients beside 14 P / d; gathered twice for each, scattered once: (2 k + 1) P."""
    d, width = 8, 1 << 14
    few, more = (
        on_dgx(chain([width] * n, d * k), d=d, k=k, zero=3, no_sync=True)
        for n in (4, 6)
    )
    parameters = 2 * width * width
    activations = 2 * 2 * width
    held = on_each_device(peak_memory, more) - on_each_device(peak_memory, few)
    assert held == 2 * parameters + 14 * parameters // d + activations
    sent = on_each_device(bytes_sent, more) - on_each_device(bytes_sent, few)
    assert sent == (2 * k + 1) * 2 * parameters * (d - 1) // d


def test_searches_may_add_up_whole_gradients() -> None:
    """The grid if asked for, the neighbours of a plan with ZeRO 3 by default."""
    options = SearchOptions(no_sync=("off", "on"), zero=(2, 3), micro_batches=(1, 4))
    plans = Space.of(options, (16,), True, 2, [(2, 1, 1)]).plans()
    assert {(p.zero, p.k) for p in plans if p.no_sync} == {(3, 4)}
    space = AutoSpace((16,), True, 2)
    (plan,) = (p for p in plans if p.k == 4 and p.zero == 3 and not p.no_sync)
    assert replace(plan, no_sync=True) in list(space.neighbours(plan))
    for other in space.neighbours(replace(plan, no_sync=True)):
        if isinstance(other, GridPlan) and other.no_sync:
            assert other.zero == 3 and other.k > 1
