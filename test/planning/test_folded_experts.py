"""Experts over several axes at once: the same results, and one all-to-all over all of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from support.pipelines import assert_same, distributed
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.over_axes import RaggedAllToAllOp
from distir.dialects.dist import layout_of
from distir.errors import DistIRError
from distir.frontends.models.llama import build_llama
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.program import arguments_of, entry_function

EXPERTS = 8


@functools.cache
def model(*, layers: int = 1, training: bool = True) -> ModuleOp:
    """A small Mixtral, or its training step with Adam."""
    module = build_llama(layers, 16, 4, 32, 8, 8, ffn=32, experts=EXPERTS, top_k=2)
    if training:
        step = DifferentiatePass(optimizer="adam", loss="cross_entropy")
        step.apply(Context(), module)
    return module


def exchanges(module: ModuleOp) -> set[tuple[str, ...]]:
    """The axes of the all-to-alls of a program that send no empty rows."""
    return {o.axis_names for o in module.walk() if isinstance(o, RaggedAllToAllOp)}


def splits_of_experts(module: ModuleOp) -> set[tuple[tuple[str, ...], ...]]:
    """The axes over which the dimensions of matrices of experts are split."""
    return {
        tuple(tuple(s.axis for s in dim) for dim in layout.full_dims(3))
        for argument in arguments_of(entry_function(module))
        if "experts" in argument.name and argument.role == "parameter"
        if (layout := layout_of(argument.value)) is not None
    }


FOLDED: list[dict[str, Any]] = [
    dict(e=2, t=2, d=2, expert_axes="et", zero=1, sequence_parallel=True),
    dict(e=2, t=2, expert_axes="et", k=2),
    dict(t=4, expert_axes="et", zero=1, d=2),
    dict(e=2, c=2, expert_axes="ec", zero=1, context_order="cyclic"),
    dict(e=2, c=2, t=2, expert_axes="ect", sequence_parallel=True),
    dict(e=2, t=2, expert_axes="et", sequence_parallel=True, p=2, k=2, zero=1),
]


@pytest.mark.parametrize("options", chosen(FOLDED, FOLDED[:1]))
def test_training(options: dict[str, Any]) -> None:
    layers = options.get("p", 1)
    program = assert_same(model(layers=layers), 1e-4, **options)
    axes = tuple(a for a in options["expert_axes"] if options.get(a, 1) > 1)
    assert exchanges(program) == {axes}
    assert splits_of_experts(program) == {(axes, (), ())}


def test_forward() -> None:
    options: dict[str, Any] = dict(e=2, t=2, expert_axes="et")
    program = assert_same(model(training=False), 1e-4, **options)
    assert exchanges(program) == {("e", "t")}


def test_one_axis_as_before() -> None:
    """Over e alone, axis t splits each matrix."""
    program = distributed(model(training=False), e=4, t=2)
    assert all(split[0] == ("e",) for split in splits_of_experts(program))
    assert all(("t",) in split[1:] for split in splits_of_experts(program))


def test_time_and_memory() -> None:
    """
    The matrices of a device are as large, whether whole ones of fewer experts or parts of
    more. But each device dispatches its own tokens, instead of those of all t devices.
    """
    module = build_llama(1, 256, 4, 64, 8, 512, ffn=512, experts=8, top_k=2)
    both = [
        simulate(distributed(module, e=4, t=2, sequence_parallel=True, **options))
        for options in ({}, {"expert_axes": "et"})
    ]
    whole, folded = (found.peak_memory_bytes for found in both)
    assert max(folded) < max(whole)
    assert 0.3 < both[1].step_time_s / both[0].step_time_s < 1.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(e=2, expert_axes="et"), "over axis 't', but t is 1"),
        (dict(e=2, t=2, c=2, expert_axes="et"), "choose expert_axes=ect"),
        (
            dict(t=2, c=2, expert_axes="ect", context_order="cyclic"),
            "choose context_order=contiguous",
        ),
        (
            dict(e=8, t=2, expert_axes="et"),
            "8 experts cannot be dealt out to 16 groups",
        ),
        (dict(e=2, t=2, expert_axes="te"), "choose one of e, ec, et, ect"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DistIRError, match=message):
        distributed(model(training=False), **options)
