"""Sequences that are split between the blocks, and what layers keep of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.errors import DistIRError
from distir.exports.systems.plan_file import grid_plan
from distir.exports.systems.registry import SYSTEMS
from distir.exports.systems.settings import RunSettings
from distir.frontends.models.llama import build_llama
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass


def step() -> ModuleOp:
    """A training step of a LLaMA of two layers."""
    module = build_llama(
        layers=2, d_model=16, heads=2, kv_heads=2, ffn=32, vocab=32, batch=4, seq=8
    )
    DifferentiatePass(optimizer="adamw").apply(Context(), module)
    return module


def gathers(module: ModuleOp) -> int:
    """The number of all-gathers in the text of a program."""
    return sum(isinstance(op, AllGatherOp) for op in module.walk())


@pytest.mark.parametrize(
    "options", [dict(t=2), dict(t=2, p=2, k=2), dict(t=2, d=2, zero=1)]
)
def test_kept_activations_are_not_gathered_again(options: dict[str, Any]) -> None:
    module = step()
    parts = distributed(module, sequence_parallel=True, **options)
    whole = distributed(module, sequence_parallel=True, keep_gathered=True, **options)
    assert gathers(whole) < gathers(parts)
    kept, again = simulate(whole), simulate(parts)
    assert max(kept.peak_memory_bytes) >= max(again.peak_memory_bytes)
    assert sum(kept.communication_bytes) < sum(again.communication_bytes)
    arguments = random_arguments(module, 3)
    expected, actual = run_program(module, arguments), run_program(whole, arguments)
    for a, b in zip(expected, actual, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_there_must_be_something_to_keep() -> None:
    with pytest.raises(DistIRError, match="add sequence_parallel, or leave it out"):
        distributed(step(), t=2, keep_gathered=True)


def test_nanotron_says_whether_it_gathers_again() -> None:
    settings = RunSettings(
        layers=4, d_model=64, heads=4, vocab=256, seq=32, batch=8, devices=4, t=2,
        mlp="swiglu", norm="rms", position="rotary", bias=False, zero=1,
        sequence_parallel=True, keep_gathered=True,
    ).completed()  # fmt: skip
    nanotron = SYSTEMS["nanotron"]
    values, _ = nanotron.write(settings, {}, {})
    assert values["parallelism.tp_recompute_allgather"] is False
    document = nanotron.parse(nanotron.render(values, settings, {}), "config.yaml", {})
    read = nanotron.read(document, {})
    assert read.settings.keep_gathered
    assert grid_plan(read.settings).options().keep_gathered
    with pytest.raises(DistIRError, match="no option that keeps gathered activations"):
        SYSTEMS["torchtitan"].write(settings, {}, {})
