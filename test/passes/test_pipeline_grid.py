"""
Pipelines of MLP and GPT over a grid of strategies: outputs, loss, gradients and updates
are those of the sequential program, in the reference interpreter.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from support.pipelines import Array, arguments_of, assert_equal_results, distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_mlp
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass


@dataclass(frozen=True)
class Program:
    """
    A model and what is done with it: `inference`, `none` for a step that gives the
    gradients themselves, or an optimizer.
    """

    model: str
    layers: int
    batch: int
    optimizer: str


@dataclass(frozen=True)
class Case:
    program: Program
    options: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        p = self.program
        shown = "-".join(f"{k}={v}" for k, v in self.options)
        return f"{p.model}{p.layers}x{p.batch}-{p.optimizer}-{shown}"


SCHEDULES: list[tuple[str, int | None]] = [
    ("gpipe", None),
    ("1f1b", None),
    ("interleaved-1f1b", 2),
    ("interleaved-1f1b", 3),
    ("zb-h1", None),
    ("interleaved-zero-bubble", 2),
    ("zbv", None),
    ("dualpipev", None),
]
# Ranks, micro-batches, batch, and then d and t: p = 3, k that p does not divide, k = 1,
# p = 1 (accumulated gradients), up to 16 devices.
SHAPES = [
    (1, 3, 12, 2, 1),
    (2, 1, 12, 1, 2),
    (2, 4, 8, 2, 1),
    (2, 3, 12, 2, 2),
    (3, 4, 8, 1, 1),
    (3, 2, 8, 2, 2),
    (3, 1, 8, 1, 1),
    (3, 5, 10, 2, 1),
    (4, 6, 12, 1, 1),
    (4, 2, 8, 4, 1),
]
LAYERS = 7
"""Nothing divides it: stages are uneven."""


def _case(program: Program, **options: Any) -> Case:
    kept = ((k, v) for k, v in options.items() if v not in (None, 0, "none"))
    return Case(program, tuple(kept))


def _gradients() -> list[Case]:
    """Every schedule on every shape."""
    found: list[Case] = []
    for model, (schedule, chunks), (p, k, batch, d, t) in product(
        ("mlp", "gpt"), SCHEDULES, SHAPES
    ):
        stages = p * (chunks or (2 if schedule in ("zbv", "dualpipev") else 1))
        layers = LAYERS if stages <= LAYERS else stages + 1
        program = Program(model, layers, batch, "none")
        found.append(
            _case(program, p=p, k=k, d=d, t=t, schedule=schedule, chunks=chunks)
        )
    return found


def _trainings() -> list[Case]:
    """What saves memory, with the schedules that treat it differently."""
    found: list[Case] = []
    strategies = [
        ("gpt", dict(zero=zero, checkpoint=policy, d=2))
        for zero, policy in product((0, 1, 2, 3), ("none", "full", "selective"))
    ]
    strategies += [
        ("gpt", dict(zero=zero, checkpoint=policy, d=2, t=2, sequence_parallel=True))
        for zero, policy in ((0, "none"), (1, "full"), (2, "selective"), (3, "full"))
    ]
    strategies += [("mlp", dict(zero=zero, d=4)) for zero in (0, 1, 2, 3)]
    pipelines = [
        dict(p=1, k=3),
        dict(p=2, k=3),
        dict(p=2, k=3, schedule="interleaved-1f1b"),
        dict(p=2, k=1, schedule="zb-h1"),
        dict(p=2, k=3, schedule="dualpipev"),
    ]
    for (model, strategy), pipeline in product(strategies, pipelines):
        optimizer = "sgd" if strategy.get("zero") == 1 else "adamw"
        program = Program(model, 4, 12, optimizer)
        found.append(_case(program, **pipeline, **strategy))
    return found


def _inferences() -> list[Case]:
    found: list[Case] = []
    for model, (p, k, d, t), chunks in product(
        ("mlp", "gpt"), ((2, 3, 2, 2), (3, 4, 1, 1), (4, 1, 1, 2), (1, 2, 2, 1)), (1, 2)
    ):
        program = Program(model, 9, 12, "inference")
        found.append(_case(program, p=p, k=k, d=d, t=t, chunks=chunks))
    return found


def _others() -> list[Case]:
    """Stages as asked for, and sends that block."""
    found: list[Case] = []
    for model, optimizer in product(("mlp", "gpt"), ("inference", "none")):
        program = Program(model, 5, 8, optimizer)
        layer = "layers" if model == "mlp" else "transformer.h"
        for options in (
            dict(stages=("uniform",)),
            dict(stages=(f"{layer}.1", f"{layer}.2")),
            dict(blocking_sends=True),
        ):
            found.append(_case(program, p=3, k=4, **options))
    return found


CASES = [*_gradients(), *_trainings(), *_inferences(), *_others()]
SAMPLE = {
    # Every schedule, on two to four ranks.
    "mlp7x8-none-p=3-k=2-d=2-t=2-schedule=gpipe",
    "mlp10x8-none-p=3-k=4-d=1-t=1-schedule=interleaved-1f1b-chunks=3",
    "mlp7x8-none-p=4-k=2-d=4-t=1-schedule=zb-h1",
    "mlp7x8-none-p=2-k=4-d=2-t=1-schedule=interleaved-zero-bubble-chunks=2",
    "mlp7x8-none-p=2-k=4-d=2-t=1-schedule=zbv",
    "mlp7x12-none-p=2-k=1-d=1-t=2-schedule=dualpipev",
    # Every stage of ZeRO and every policy, with the schedules that treat them differently.
    "gpt4x12-adamw-p=2-k=1-schedule=zb-h1-zero=2-checkpoint=selective-d=2",
    "gpt4x12-sgd-p=1-k=3-zero=1-checkpoint=full-d=2-t=2-sequence_parallel=True",
    "mlp4x12-adamw-p=2-k=3-schedule=dualpipev-zero=3-d=4",
    # Without a backward, and with sends that block.
    "gpt9x12-inference-p=2-k=3-d=2-t=2-chunks=2",
    "mlp5x8-none-p=3-k=4-blocking_sends=True",
}
"""The cases of `make test`."""


@functools.cache
def sequential(program: Program) -> tuple[ModuleOp, list[Array], list[Array]]:
    """The program, arguments, and what it makes of them."""
    if program.model == "mlp":
        module = build_mlp(program.layers, d_model=8, batch=program.batch)
    else:
        module = build_gpt(
            program.layers, d_model=8, heads=4, vocab=16, batch=program.batch, seq=4
        )
    if program.optimizer != "inference":
        loss = "mse" if program.model == "mlp" else "cross_entropy"
        step = DifferentiatePass(
            loss=loss, optimizer=program.optimizer, learning_rate=0.1, momentum=0.9
        )
        step.apply(Context(), module)
    arguments = arguments_of(module)
    return module, arguments, run_program(module, arguments)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=str(c), marks=() if str(c) in SAMPLE else pytest.mark.slow)
        for c in CASES
    ],
)
def test_same_results(case: Case) -> None:
    module, arguments, expected = sequential(case.program)
    result = distributed(module, **dict(case.options))
    assert_equal_results(module, expected, run_program(result, arguments))


def test_grid_covers_what_it_says() -> None:
    assert len(CASES) >= 200 and len(set(CASES)) == len(CASES)
    assert set(map(str, CASES)) > SAMPLE
    options = [dict(c.options) for c in CASES]
    devices = {o["p"] * o.get("d", 1) * o.get("t", 1) for o in options}
    assert max(devices) == 16
    assert any(o["p"] == 3 and o["k"] % 3 for o in options)
    assert {o.get("zero", 0) for o in options} == {0, 1, 2, 3}
