"""xDSL's generic passes leave distributed programs valid, and equal to the bit."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support.cost_programs import MACHINES, distributed
from support.pipelines import arguments_of
from support.thoroughness import sampled
from support.training_programs import training_gpt
from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.rewriter import Rewriter
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import (
    CommonSubexpressionElimination,
)
from xdsl.transforms.dead_code_elimination import DeadCodeElimination

from distir.dialects.collective_ops.base import CollectiveOp, bucket_of
from distir.dialects.dist_attributes import BUCKET
from distir.interpreters.reference import run_program
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.inline_calls import InlineCallsPass
from distir.program import (
    entry_function,
    result_attributes,
    return_op,
    set_result_attributes,
)
from distir.sharding.verification import verify_distribution
from distir.transforms.projection import devices_of, project

PASSES = (DeadCodeElimination, CommonSubexpressionElimination, CanonicalizePass)

PLANS: list[dict[str, Any]] = [
    {"d": 4, "zero": 3},
    {"d": 4, "overlap": True},
    {"d": 2, "t": 2, "zero": 3, "sequence_parallel": True, "overlap": True},
    {"d": 2, "p": 2, "k": 2, "zero": 2},
    {"d": 2, "t": 2},
    {"p": 2, "k": 4},
]


@functools.cache
def _program(number: int, inlined: bool = False) -> ModuleOp:
    module = distributed(training_gpt(), MACHINES, **PLANS[number])
    if inlined:
        InlineCallsPass().apply(Context(), module)
        module.verify()
        verify_distribution(module)
    return module


def _simplified(module: ModuleOp) -> ModuleOp:
    """A copy after each of the generic passes, which is verified after each."""
    module = module.clone()
    for generic_pass in PASSES:
        generic_pass().apply(Context(), module)
        module.verify()
        verify_distribution(module)
    return module


def _members(module: ModuleOp) -> int:
    """The number of collectives that travel with others."""
    return sum(
        len(bucket_of(op)) > 1 for op in module.walk() if isinstance(op, CollectiveOp)
    )


def _keep_results(module: ModuleOp, kept: list[int]) -> None:
    """Removes all other results of the entry function."""
    entry = entry_function(module)
    end, attributes = return_op(entry), result_attributes(entry)
    values = [end.operands[i] for i in kept]
    Rewriter.replace_op(end, ReturnOp(*values))
    inputs = entry.function_type.inputs.data
    entry.function_type = FunctionType.from_lists(inputs, [v.type for v in values])
    set_result_attributes(entry, [attributes[i] for i in kept])


@pytest.mark.parametrize("number", sampled(range(len(PLANS)), 3))
def test_generic_passes_keep_distributed_programs(number: int) -> None:
    module = _program(number)
    arguments = arguments_of(module)
    found = run_program(_simplified(module), arguments)
    for expected, actual in zip(run_program(module, arguments), found, strict=True):
        np.testing.assert_array_equal(expected, actual)


@pytest.mark.parametrize("number", sampled(range(3), 2))
@pytest.mark.parametrize("seed", sampled(range(2), 2))
def test_messages_may_lose_collectives(number: int, seed: int) -> None:
    """Where results are not asked for, what computes them leaves its message."""
    module = _program(number, inlined=True).clone()
    count = len(return_op(entry_function(module)).operands)
    chosen = np.random.default_rng(seed).permutation(count)[: max(2, count // 3)]
    kept = sorted(map(int, chosen))
    arguments = arguments_of(module)
    whole, before = run_program(module, arguments), _members(module)
    _keep_results(module, kept)
    module = _simplified(module)
    assert 0 < _members(module) < before
    for i, actual in zip(kept, run_program(module, arguments), strict=True):
        np.testing.assert_array_equal(whole[i], actual)


def test_inlined_calls_have_messages_of_their_own() -> None:
    module = distributed(training_gpt(), MACHINES, d=2, t=2, zero=3)
    inlined = module.clone()
    InlineCallsPass().apply(Context(), inlined)
    verify_distribution(inlined)
    numbers = [op.attributes.get(BUCKET) for op in inlined.walk()]
    assert len({number for number in numbers if number is not None}) > 1


def test_collectives_of_a_rank_stay() -> None:
    """The others of its group have them, used or not."""
    module = _program(0)
    program = project(module, devices_of(module)[1])
    _keep_results(program, [])
    before = [op.name for op in program.walk() if isinstance(op, CollectiveOp)]
    for generic_pass in PASSES:
        generic_pass().apply(Context(), program)
        program.verify()
    after = [op.name for op in program.walk() if isinstance(op, CollectiveOp)]
    assert after == before != []


def test_activation_checkpoints_stay_right() -> None:
    """What is computed again may be taken from the first time, at the cost of memory."""
    module = training_gpt()
    ActivationCheckpointPass().apply(Context(), module)
    module = distributed(module, MACHINES, d=2, t=2)
    arguments = arguments_of(module)
    found = run_program(_simplified(module), arguments)
    for expected, actual in zip(run_program(module, arguments), found, strict=True):
        np.testing.assert_array_equal(expected, actual)
