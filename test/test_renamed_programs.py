"""Names of values mean nothing: under other names every program is decided on alike."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from support.imported_programs import program
from support.llama_programs import llama_step
from support.pipelines import distributed
from support.renaming import anonymous, renamed
from support.thoroughness import sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_mlp, build_moe
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.inline_calls import InlineCallsPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.passes.search_sharding import SearchShardingPass
from distir.program import functions


@functools.cache
def model(name: str) -> ModuleOp:
    """A training step, unless it says otherwise."""
    if name == "llama":
        sizes = {"width": 16, "heads": 4, "groups": 2, "hidden": 32, "vocab": 32}
        return llama_step(2, 4, 8, **sizes)
    if name.startswith("imported "):
        return program(name.removeprefix("imported "), True, "adamw")
    kind, _, optimizer = name.partition(" ")
    if kind == "mlp":
        module = build_mlp(layers=4, d_model=8, batch=8)
    elif kind == "moe":
        module = build_moe(2, 16, 4, experts=4, vocab=32, batch=4, seq=8)
    else:
        module = build_gpt(4, 16, 4, 32, 4, 8, dropout=0.1 * (kind == "dropout"))
    if optimizer != "forward":
        loss = "mse" if kind == "mlp" else "cross_entropy"
        differentiate = DifferentiatePass(loss=loss, optimizer=optimizer or "adamw")
        differentiate.apply(Context(), module)
    return module


IMPORTED = ("imported resnet", "imported bert")
MODELS = ("mlp", "gpt", "llama", "moe", *IMPORTED)
PIPELINE = {"p": 2, "k": 2}


@pytest.mark.parametrize(
    ("name", "options"),
    sampled(
        [
            *[(name, PIPELINE) for name in MODELS],
            ("gpt forward", PIPELINE),
            ("mlp none", PIPELINE),
            ("dropout", PIPELINE),
            ("gpt", {**PIPELINE, "schedule": "interleaved-1f1b", "chunks": 2}),
            ("mlp", {**PIPELINE, "d": 2, "t": 2, "zero": 1, "overlap": True}),
            *[("gpt", {"d": 2, "zero": zero}) for zero in (1, 2, 3)],
            ("moe", {"d": 2, "zero": 3}),
            *[(name, {"t": 2}) for name in MODELS],
            ("gpt", {"t": 2, "sequence_parallel": True, "checkpoint": "full"}),
            ("llama", {"t": 2, "d": 2, "sequence_parallel": True, "zero": 1}),
            ("gpt", {**PIPELINE, "stages": ("search",)}),
        ],
        6,
    ),
)
def test_distributed_alike(name: str, options: dict[str, Any]) -> None:
    other = renamed(model(name), seed=1)
    assert anonymous(other) == anonymous(model(name))
    expected = distributed(model(name), **options)
    assert anonymous(distributed(other, **options)) == anonymous(expected)


@pytest.mark.parametrize(
    ("name", "axes", "options"),
    [
        ("mlp", ("d=2", "t=2"), {}),
        pytest.param("gpt", ("t=2",), {}, marks=pytest.mark.slow),
        ("moe", ("d=2",), {"level": "O2"}),
    ],
)
def test_searched_alike(
    name: str, axes: tuple[str, ...], options: dict[str, Any]
) -> None:
    found: list[tuple[str, float]] = []
    for module in (model(name).clone(), renamed(model(name), seed=2)):
        first = module.body.block.first_op
        assert first is not None
        module.body.block.insert_op_before(load_cluster("cpu", 4), first)
        SearchShardingPass(axes, **options).apply(Context(), module)
        found.append((anonymous(module), simulate(module).step_time_s))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["gpt forward", "imported bert"])
def test_outlined_alike(name: str) -> None:
    flat = model(name).clone()
    InlineCallsPass().apply(Context(), flat)
    other = renamed(flat, seed=3)
    for module in (flat, other):
        OutlineRepeatsPass().apply(Context(), module)
    assert len(functions(flat)) > 1
    assert anonymous(other) == anonymous(flat)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_differentiated_alike(optimizer: str) -> None:
    steps = [
        model("dropout forward").clone(),
        renamed(model("dropout forward"), seed=4),
    ]
    for module in steps:
        DifferentiatePass(optimizer=optimizer).apply(Context(), module)
    assert anonymous(steps[0]) == anonymous(steps[1])
