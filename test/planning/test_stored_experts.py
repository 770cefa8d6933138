"""Experts that ZeRO 3 stores in parts: work is split as they are where that sends less."""

from __future__ import annotations

import functools

import pytest
from support.pipelines import arguments_of, assert_equal_results, distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.over_axes import AllGatherOp, AllToAllOp
from distir.dialects.tensors import rank_of
from distir.frontends.models.basic import build_moe
from distir.hardware import load_cluster
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.plans.programs import replace_cluster


@functools.cache
def step(d_model: int, batch: int, seq: int, dtype: str = "f32") -> ModuleOp:
    """The training step of two layers, of which one has 8 experts."""
    module = build_moe(2, d_model, 4, 8, 64, batch, seq, dtype=dtype)
    DifferentiatePass().apply(Context(), module)
    return module


def exchanges_tokens(module: ModuleOp) -> bool:
    """Whether tokens come to the experts, which are not gathered."""
    gathered = any(
        isinstance(op, AllGatherOp) and rank_of(op.result.type) == 3
        for op in module.walk()
    )
    return not gathered and any(isinstance(op, AllToAllOp) for op in module.walk())


@pytest.mark.parametrize(
    ("d_model", "batch", "seq", "exchanged"), [(64, 8, 16, True), (8, 16, 64, False)]
)
def test_what_sends_less(d_model: int, batch: int, seq: int, exchanged: bool) -> None:
    """Few tokens go to wide experts; narrow experts go to many tokens."""
    module = step(d_model, batch, seq)
    program = distributed(module, d=4, zero=3)
    assert exchanges_tokens(program) == exchanged
    arguments = arguments_of(module)
    expected = run_program(module, arguments)
    assert_equal_results(program, expected, run_program(program, arguments), 1e-3)


def test_as_fast_as_with_whole_parameters() -> None:
    module = step(1024, 64, 256, "bf16")
    seconds: list[float] = []
    for zero in (1, 3):
        copy = module.clone()
        replace_cluster(copy, load_cluster("dgx-a100", 8))
        DistributePass(d=8, zero=zero).apply(Context(), copy)
        seconds.append(simulate(copy).step_time_s)
    assert seconds[1] < seconds[0]
