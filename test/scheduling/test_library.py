"""
The library of schedules: what each asks for computes what the model does, and takes no more
lines than the scripts of Slapo's Table 4.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from support.library_models import FAMILIES, family
from support.schedules import splits
from support.thoroughness import chosen, sampled
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

import distir.scheduling.library
from distir.dialects.dist_attributes import RECOMPUTE
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.apply_schedule import ApplySchedulePass
from distir.passes.differentiate import DifferentiatePass
from distir.scheduling.script import add_schedules, read_script

LIBRARY = Path(distir.scheduling.library.__file__).parent

LINES = {
    "bert": 21,
    "roberta": 21,
    "albert": 21,
    "gpt2": 10,
    "gpt_neo": 10,
    "opt": 10,
    "t5": 11,
    "llama": 11,
    "mixtral": 11,
    "wide_resnet": 12,
    "vit": 10,
}
"""Lines of Slapo's script for a model (its Table 4), or for the one that is most like it."""

SPLIT = {
    "bert": "bert.encoder.layer.1.attention.self.qkv.weight",
    "roberta": "roberta.encoder.layer.1.output.dense.weight",
    "albert": "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight",
    "gpt2": "transformer.h.1.attn.c_proj.weight",
    "gpt_neo": "transformer.h.1.attn.attention.qkv.weight",
    "opt": "model.decoder.layers.1.self_attn.qkv.weight",
    "t5": "decoder.block.1.layer.1.EncDecAttention.o.weight",
    "llama": "model.layers.1.mlp.down_proj.weight",
    "mixtral": "model.layers.1.mlp.experts.down_proj",
    "vit": "vit.layers.1.mlp.fc2.weight",
    "wide_resnet": "layer1.1.conv2.weight",
}
"""A parameter of each that the schedule splits over t."""


def scheduled(name: str, *chosen: str) -> ModuleOp:
    module = family(name).clone()
    add_schedules(module, read_script(LIBRARY / f"{name}.py"))
    ApplySchedulePass(set=chosen).apply(Context(), module)
    module.verify()
    return module


def assert_same(module: ModuleOp, other: ModuleOp, results: int | None = None) -> None:
    """Both give the same results for the same parameters, merged or not."""
    wanted = run_program(module, random_arguments(module, 0))
    found = run_program(other, random_arguments(other, 0))
    for a, b in zip(wanted[:results], found[:results], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_every_script_is_tested() -> None:
    names = {path.stem for path in LIBRARY.glob("*.py")} - {"__init__"}
    assert names == set(FAMILIES) == set(LINES) == set(SPLIT)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_script_takes_no_more_lines_than_slapo(name: str) -> None:
    tree = ast.parse((LIBRARY / f"{name}.py").read_text())
    count = 0
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            documentation, *body = function.body
            assert isinstance(documentation, ast.Expr)
            count += 1 + (body[-1].end_lineno or 0) - body[0].lineno
    assert count <= LINES[name]


@pytest.mark.parametrize("name", chosen(FAMILIES, ["bert"]))
def test_a_scheduled_model_computes_the_same(name: str) -> None:
    knob = "policy=full" if name == "albert" else "ratio=0.5"
    asked = scheduled(name, knob)
    # Of albert's one layer each call is computed again, of the others' half.
    assert str(asked).count(f"{RECOMPUTE} =") == (2 if name in ("albert", "t5") else 1)
    found = distributed(asked, t=2)
    assert "{t" in splits(found)[SPLIT[name]]
    assert_same(family(name), found)


@pytest.mark.parametrize("name", sampled(["albert", "bert"], 2))
def test_a_scheduled_model_trains_as_without(name: str) -> None:
    knob = "policy=full" if name == "albert" else "ratio=0.5"
    step, asked = family(name).clone(), scheduled(name, knob)
    for module in (step, asked):
        options = {"loss": "mse", "optimizer": "sgd", "learning_rate": 0.1}
        DifferentiatePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    found = distributed(asked, d=2, t=2)
    assert "_recompute" in str(found)
    # The loss; what is updated has other shapes where layers were merged.
    assert_same(step, found, results=1)
