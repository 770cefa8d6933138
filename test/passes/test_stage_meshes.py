"""
Stages on meshes of different shapes: results are those of the sequential program, and
each device is sent what its layout gives it.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.pipelines import assert_same
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.builders import build_gpt, build_mlp
from distir.frontends.models.t5 import build_t5
from distir.passes.differentiate import DifferentiatePass


def step(module: ModuleOp, loss: str, **options: Any) -> ModuleOp:
    """Returns the training step of a program."""
    asked = {"optimizer": "adamw", "learning_rate": 0.1} | options
    DifferentiatePass(loss=loss, **asked).apply(Context(), module)
    return module


def mlp(layers: int = 4, **options: Any) -> ModuleOp:
    return step(build_mlp(layers, d_model=8, batch=8), "mse", **options)


def gpt(**options: Any) -> ModuleOp:
    module = build_gpt(4, d_model=8, heads=4, vocab=16, batch=8, seq=4)
    return step(module, "cross_entropy", **options)


def t5(**options: Any) -> ModuleOp:
    module = build_t5(2, d_model=8, heads=4, vocab=16, batch=8, seq=4, target_seq=3)
    return step(module, "cross_entropy", **options)


@pytest.mark.parametrize(
    "shapes",
    [
        ("d=2,t=2", "t=2"),
        ("d=2,t=2", "t=4"),
        ("t=1", "d=2,t=2"),
        ("d=3", "d=2"),
        ("d=4", "t=4"),
    ],
    ids="/".join,
)
def test_mlp_equals_the_sequential_program(shapes: tuple[str, ...]) -> None:
    batch = 24 if "d=3" in shapes else 8
    module = step(build_mlp(4, d_model=8, batch=batch), "mse")
    assert_same(module, p=2, k=4 if batch == 24 else 2, stage_meshes=shapes)
