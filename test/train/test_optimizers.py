"""Optimizers against torch.optim over five steps, in the interpreter and lowered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.lowering_cases import run_here, to_torch
from support.sharding_harness import Array, typed
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from distir.dialects.train_ops.optimizers import AdamOp, AdamWOp, SgdOp
from distir.gradients.clipping import clipped
from distir.gradients.rule import GradientBuilder
from distir.interpreters.reference import run_program

STEPS = 5

Make = Callable[..., Operation]
Run = Callable[[ModuleOp, Sequence[Array]], list[Any]]


def program(
    inputs: Sequence[Array], body: Callable[[Block], Sequence[SSAValue]]
) -> ModuleOp:
    block = Block(arg_types=[typed(a) for a in inputs])
    results = body(block)
    block.add_op(ReturnOp(*results))
    types = FunctionType.from_lists(
        [a.type for a in block.args], [r.type for r in results]
    )
    module = ModuleOp([FuncOp("main", types, Region(block))])
    module.verify()
    return module


def numbers(*shape: int, seed: int, dtype: Any) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


DEFAULTS: dict[bool, dict[str, Any]] = {
    False: {"weight_decay": 0.0},
    True: {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
}
"""PyTorch's, of SGD and of what counts its steps."""


def train(
    make: Make,
    options: dict[str, Any],
    start: Array,
    gradients: Sequence[Array],
    run: Run,
    states: int,
    counts: bool,
) -> Array:
    """The parameter after a step for each gradient; states start as zeros."""
    values = [start] + [np.zeros_like(start)] * states
    for time, gradient in enumerate(gradients):
        step = [np.array(time)] if counts else []
        inputs = [values[0], gradient, *values[1:], *step]

        def body(block: Block) -> Sequence[SSAValue]:
            op = make(*block.args, **{**DEFAULTS[counts], **options})
            block.add_op(op)
            return op.results

        values = run(program(inputs, body), inputs)
        assert [v.dtype for v in values] == [start.dtype] * len(values)
    return values[0]


ADAM = {"learning_rate": 0.01, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}
CASES: list[tuple[Make, dict[str, Any], Callable[[Any], Any], int, bool]] = [
    (
        *(SgdOp, {"learning_rate": 0.1}),
        *(lambda p: torch.optim.SGD(p, lr=0.1), 0, False),
    ),
    (
        *(SgdOp, {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.2}),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.2),
        *(1, False),
    ),
    (
        *(SgdOp, {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        *(1, False),
    ),
    (
        *(AdamOp, {**ADAM, "weight_decay": 0.3}),
        lambda p: torch.optim.Adam(
            p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3
        ),
        *(2, True),
    ),
    (
        *(AdamOp, {"learning_rate": 1e-3, "weight_decay": 0.0}),
        lambda p: torch.optim.Adam(p, lr=1e-3),
        *(2, True),
    ),
    (
        *(AdamWOp, {**ADAM, "weight_decay": 0.3}),
        lambda p: torch.optim.AdamW(
            p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3
        ),
        *(2, True),
    ),
    (
        *(AdamWOp, {"learning_rate": 1e-3, "weight_decay": 0.01}),
        lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01),
        *(2, True),
    ),
]


@pytest.mark.parametrize("shape", [(3, 4), ()], ids=["matrix", "scalar"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("run", [run_program, run_here], ids=["reference", "torch"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0].name}-{len(c[1])}")
def test_five_steps_equal_torch(
    case: Any, run: Run, dtype: Any, shape: tuple[int, ...]
):
    make, options, optimizer, states, counts = case
    start = numbers(*shape, seed=0, dtype=dtype)
    gradients = [numbers(*shape, seed=1 + i, dtype=dtype) for i in range(STEPS)]
    got = train(make, options, start, gradients, run, states, counts)
    parameter = torch.nn.Parameter(to_torch(start))
    torch_optimizer = optimizer([parameter])
    for gradient in gradients:
        parameter.grad = to_torch(gradient)
        torch_optimizer.step()
    assert got.dtype == dtype
    tolerance = 1e-12 if dtype == np.float64 else 2e-6
    np.testing.assert_allclose(
        got, parameter.detach().numpy(), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("run", [run_program, run_here], ids=["reference", "torch"])
def test_a_narrow_gradient_updates_a_wide_parameter(run: Run):
    start = numbers(8, seed=0, dtype=np.float32)
    narrow = [numbers(8, seed=1, dtype=np.float16)]
    wide = [g.astype(np.float32) for g in narrow]
    options = {"learning_rate": 0.01, "weight_decay": 0.1}
    for make, states, counts in (
        (AdamWOp, 2, True),
        (AdamOp, 2, True),
        (SgdOp, 0, False),
    ):
        found = [
            train(make, options, start, g, run, states, counts) for g in (narrow, wide)
        ]
        assert found[0].dtype == np.float32
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("run", [run_program, run_here], ids=["reference", "torch"])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clipping_equals_torch(run: Run, max_norm: float):
    gradients = [numbers(3, 4, seed=i, dtype=np.float32) for i in range(3)]
    got = run(
        program(
            gradients,
            lambda block: clipped(
                block.args, max_norm, GradientBuilder(block.add_op, None)
            ),
        ),
        gradients,
    )
    parameters = [torch.nn.Parameter(torch.zeros(3, 4)) for _ in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.tensor(gradient)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    for ours, parameter in zip(got, parameters, strict=True):
        np.testing.assert_allclose(ours, parameter.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("make", [AdamOp, AdamWOp], ids=lambda make: make.name)
@pytest.mark.parametrize("run", [run_program, run_here], ids=["reference", "torch"])
def test_a_scalar_in_half_precision_stays_in_half_precision(make: Make, run: Run):
    start, gradient = np.array(2, np.float16), np.array(3, np.float16)
    options = {"learning_rate": 0.5, "weight_decay": 0.0}
    got = train(make, options, start, [gradient], run, 2, True)
    assert got.shape == ()
    assert got == pytest.approx(1.5, rel=1e-3)


def test_clipping_of_half_precision_does_not_overflow():
    gradients = [np.full(1000, 300, np.float16)]
    (got,) = run_program(
        program(
            gradients,
            lambda block: clipped(block.args, 1.0, GradientBuilder(block.add_op, None)),
        ),
        gradients,
    )
    assert got.dtype == np.float16
    assert np.linalg.norm(got.astype(np.float32)) == pytest.approx(1.0, rel=1e-2)
