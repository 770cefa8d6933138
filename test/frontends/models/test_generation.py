"""
Programs with the entries prefill and decode: their logits equal those of the forward pass
for each sequence alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.programs import inferred_types, round_trip
from support.thoroughness import sampled
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist_attributes import FEEDS, LIMIT
from distir.dialects.onnx import OnnxOp
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_moe
from distir.frontends.models.generation import build_serving
from distir.frontends.models.llama import build_llama
from distir.frontends.serving import ServingSizes
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.planning.serving.model_sizes import served_model
from distir.program import Program
from distir.program.entries import one_entry

SIZES: Mapping[str, Any] = {"layers": 2, "d_model": 16, "heads": 4, "vocab": 32}
SERVED = ServingSizes(batch=3, cache=7, prompt=4)
LENGTHS = (1, 4, 3)
"""The lengths of the prompts."""

Values = dict[str, npt.NDArray[Any]]

MODELS: Mapping[str, tuple[Callable[..., ModuleOp], Mapping[str, Any]]] = {
    "gpt": (build_gpt, {}),
    "llama": (build_llama, {"kv_heads": 2, "ffn": 24}),
    "mixtral": (build_llama, {"ffn": 24, "experts": 4, "tied": True}),
    "moe": (build_moe, {"experts": 4}),
}


def values_of(module: ModuleOp, seed: int = 0) -> Values:
    """Arguments by name, with parameters large enough for results to vary."""
    arguments = Program(module).arguments
    values = random_arguments(module, seed)
    return {
        a.name: v * 15 if a.role == "parameter" else v
        for a, v in zip(arguments, values, strict=True)
    }


def run(module: ModuleOp, values: Values) -> tuple[npt.NDArray[Any], Values]:
    """The logits of an entry, and the cache after it by name."""
    program = Program(module)
    names = [argument.name for argument in program.arguments]
    logits, *_ = results = run_program(module, [values[name] for name in names])
    return logits, {names[a]: results[r] for r, a in program.updates.items()}


@pytest.mark.parametrize("kind", MODELS)
def test_generation_equals_the_forward_pass(kind: str) -> None:
    """Prompts of three lengths, then tokens until one sequence fills the cache."""
    builder, options = MODELS[kind]
    module = build_serving(builder, SERVED, **SIZES, **options)
    prefill, decode = (one_entry(module, name) for name in ("prefill", "decode"))
    batch, slots = SERVED.batch, SERVED.cache
    tokens = np.random.default_rng(1).integers(0, SIZES["vocab"], (batch, slots))
    # Places enough for all tokens of a sequence.
    roomy = {"capacity_factor": 2.0} if kind == "moe" else {}
    forward = builder(**SIZES, **options, **roomy, batch=batch, seq=slots)
    values = values_of(forward)
    expected, _ = run(forward, values | {"input_ids": tokens})

    parameters = {n: v for n, v in values.items() if n != "input_ids"}
    prompts = np.zeros((batch, SERVED.prompt), np.int64)
    for row, length in enumerate(LENGTHS):
        prompts[row, SERVED.prompt - length :] = tokens[row, :length]
    padding = SERVED.prompt - np.array(LENGTHS)
    # The cache holds other numbers before, which do not matter.
    given = values_of(prefill, 3) | parameters
    logits, cache = run(prefill, given | {"input_ids": prompts, "padding": padding})
    rows, positions = np.arange(batch), np.array(LENGTHS)
    while True:
        wanted = expected[rows, positions - 1]
        np.testing.assert_allclose(logits[:, 0], wanted, rtol=1e-4, atol=1e-5)
        if positions.max() == slots:
            break
        now = {"input_ids": tokens[rows, positions][:, None], "positions": positions}
        logits, cache = run(decode, parameters | cache | now)
        positions = positions + 1


@pytest.mark.parametrize("kind", sampled(MODELS, 4))
def test_the_types_are_those_of_onnx(kind: str) -> None:
    builder, options = MODELS[kind]
    module = build_serving(builder, SERVED, **SIZES, **options, dtype="bf16")
    round_trip(module)
    ops = [op for op in module.walk() if isinstance(op, OnnxOp)]
    assert len(ops) > 80
    for op in ops:
        assert [r.type for r in op.results] == inferred_types(op)


def test_inputs_say_what_generation_passes_to_them() -> None:
    module = build_serving(build_gpt, SERVED, **SIZES)
    names = [f"cache.{i}.{kind}" for i in range(2) for kind in ("key", "value")]
    for entry, feeds in (("prefill", "padding"), ("decode", "positions")):
        program = Program(one_entry(module, entry))
        inputs = [a.attributes for a in program.arguments if a.role == "input"]
        assert {FEEDS.of(a): LIMIT.of(a) for a in inputs} == {"tokens": 7, feeds: 7}
        caches = [a for a in program.arguments if a.role == "cache"]
        assert [a.name for a in caches] == names
        assert {shape_of(a.value) for a in caches} == {(3, 4, 7, 4)}
        assert [program.arguments[i].name for i in program.updates.values()] == names


def test_steps_have_neither_dropout_nor_written_attention() -> None:
    for options in ({"dropout": 0.1}, {"fused_attention": False}):
        with pytest.raises(DistIRError, match="attention as one op, and no dropout"):
            build_serving(build_gpt, SERVED, **SIZES, **options)


@pytest.mark.parametrize("kind", MODELS)
def test_a_service_is_planned_for_the_same_model(kind: str) -> None:
    builder, options = MODELS[kind]
    module = build_serving(builder, SERVED, **SIZES, **options)
    forward = builder(**SIZES, **options, batch=1, seq=SERVED.cache)
    served = served_model(module, "served")
    assert served.sizes == served_model(forward, "forward").sizes
    assert served.most_tokens == SERVED.cache
