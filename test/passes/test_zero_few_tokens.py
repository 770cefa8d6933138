"""ZeRO 3 with few tokens: where activations are smaller than a parameter, they are moved."""

from __future__ import annotations

import numpy as np
import pytest
from support.cost_programs import MACHINES
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.over_axes import AllGatherOp, AllToAllOp
from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of
from distir.frontends.models.basic import build_gpt
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import Simulation, simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.program import entry_function

WIDTH = 64
INNER = (4 * WIDTH, WIDTH)
"""The shape of the second matrix of an MLP."""


def steps(seq: int) -> tuple[ModuleOp, ModuleOp]:
    """Returns a training step on four sequences, and the same with ZeRO 3 on 4 devices."""
    sequential = build_gpt(2, WIDTH, heads=4, vocab=64, batch=4, seq=seq)
    DifferentiatePass(optimizer="adamw").apply(Context(), sequential)
    module = sequential.clone()
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(MACHINES.clone(), first)
    DistributePass(d=4, zero=3, buckets=False).apply(Context(), module)
    return sequential, module


def simulated(module: ModuleOp) -> Simulation:
    """Returns the simulation of a program, which is the same op by op."""
    result, flat = simulate(module), simulate(module, flat=True)
    assert result.communication_bytes == flat.communication_bytes
    assert result.step_time_s == pytest.approx(flat.step_time_s, rel=1e-12)
    return result


def gathered(module: ModuleOp) -> list[tuple[int, ...]]:
    """Returns the shapes of what is gathered."""
    return [shape_of(op.result) for op in module.walk() if isinstance(op, AllGatherOp)]


def test_activations_come_to_the_parts_of_a_matrix() -> None:
    """
    Eight tokens of 256 features are an eighth of the matrix that takes them. Its product is
    computed by rows of the matrix; only the backward gathers that, beside as few tokens.
    """
    few, many = steps(2)[1], steps(256)[1]
    moved = [op for op in few.walk() if isinstance(op, AllToAllOp)]
    assert (4, 2, 4 * WIDTH) in [shape_of(op.result) for op in moved]
    assert gathered(few).count(INNER) < gathered(many).count(INNER)
    assert not any(isinstance(op, AllToAllOp) for op in many.walk())
    sent, usual = simulated(few), simulated(many)
    assert max(sent.communication_bytes) < 0.7 * max(usual.communication_bytes)


def test_what_is_stored_stays_split() -> None:
    _, module = steps(2)
    for argument in entry_function(module).body.block.args:
        if len(shape_of(argument)) == 2 and WIDTH in shape_of(argument):
            layout = layout_of(argument)
            assert layout is not None and "d" in layout.split_axes


def test_results_stay() -> None:
    sequential, module = steps(2)
    arguments = random_arguments(sequential, seed=0)
    expected = run_program(sequential, arguments)
    got = run_program(module, arguments)
    for before, after in zip(expected, got, strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-6)
