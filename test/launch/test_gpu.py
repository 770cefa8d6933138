"""
Generated programs on GPUs: every op of a training step, gradients, and ranks that talk by NCCL.

These tests skip themselves without a GPU. `DISTIR_GPU_DEVICE=cpu` runs them on the CPU instead,
with gloo and as many ranks as they ask for, to see that they would run (`make gpu DRY=1`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.lowering_cases import program_of, run_here
from support.sharding_harness import Case, sequential
from support.train_cases import CASES
from support.training_programs import distributed, training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt
from distir.interpreters.inputs import random_arguments
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.program import (
    argument_names,
    entry_function,
    result_names,
    updated_arguments,
)

DEVICE = os.environ.get("DISTIR_GPU_DEVICE", "cuda")
"""Where programs run; `cpu` is for trying these tests without a GPU."""
BACKEND = "nccl" if DEVICE == "cuda" else "gloo"
COUNT = torch.cuda.device_count() if DEVICE == "cuda" else 4
"""Ranks that there is a device for."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(COUNT == 0, reason="this machine has no GPU"),
]

Arrays = dict[str, npt.NDArray[Any]]

TOLERANCES = {"f32": 1e-4, "bf16": 3e-2}
"""How far a gradient on the device may be from the CPU's, by the largest element."""


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Products of f32 in f32, not in TF32, which has 10 bits."""
    backends: Any = torch.backends
    products, cudnn = backends.cuda.matmul, backends.cudnn
    before = products.allow_tf32, cudnn.allow_tf32
    products.allow_tf32 = cudnn.allow_tf32 = False
    yield
    products.allow_tf32, cudnn.allow_tf32 = before


@pytest.mark.parametrize("case", CASES, ids=str)
def test_emitters(case: Case) -> None:
    """The kernels of a training step give on the device what the reference does."""
    plain = sequential(case)
    module = program_of(plain)
    for ours, expected in zip(
        run_here(module, plain.operands, DEVICE), plain.results, strict=True
    ):
        assert ours.dtype == expected.dtype
        assert ours.shape == expected.shape
        tolerance = {1: 0.0, 2: 1e-2, 4: 1e-4, 8: 1e-10}[expected.dtype.itemsize]
        np.testing.assert_allclose(
            ours.astype(np.float64),
            expected.astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
        )


def gpt_step(dtype: str) -> ModuleOp:
    """A step whose updates are the gradients themselves, with states that take part."""
    module = build_gpt(
        layers=2, d_model=32, heads=4, vocab=64, batch=4, seq=16, dtype=dtype
    )
    step = DifferentiatePass(optimizer="sgd", learning_rate=1.0, momentum=0.5)
    step.apply(Context(), module)
    return module


def gradients(module: ModuleOp, results: list[Any], given: list[Any]) -> Arrays:
    """What a step with a learning rate of 1 takes off each parameter."""
    names = argument_names(entry_function(module))
    return {
        names[a]: np.asarray(given[a], np.float64) - np.asarray(results[r], np.float64)
        for r, a in updated_arguments(entry_function(module)).items()
    }


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("model", ["gpt", "mlp"])
def test_gradients(model: str, dtype: str) -> None:
    """A training step on the device has the gradients of the one on the CPU."""
    if model == "mlp":
        module = training_mlp(optimizer="sgd", learning_rate=1.0)
        if dtype != "f32":
            pytest.skip("the MLP is in f32")
    else:
        module = gpt_step(dtype)
    given = [np.asarray(v) for v in random_arguments(module, 3)]
    found = gradients(module, run_here(module, given, DEVICE), given)
    expected = gradients(module, run_here(module, given), given)
    assert found
    for name, gradient in expected.items():
        scale = max(float(np.abs(gradient).max()), 1e-2)
        np.testing.assert_allclose(
            found[name], gradient, atol=TOLERANCES[dtype] * scale, rtol=0
        )


PLANS: dict[str, dict[str, Any]] = {
    "d2": {"d": 2},
    "t2": {"t": 2},
    "zero3": {"d": 2, "zero": 3},
    "zero1-overlap": {"d": 2, "zero": 1, "overlap": True},
    "sequence": {"t": 2, "sequence_parallel": True},
    "p2": {"p": 2, "k": 2},
    "d2-t2": {"d": 2, "t": 2},
    "p2-t2": {"p": 2, "t": 2, "k": 2},
}


@pytest.mark.parametrize("plan", PLANS)
def test_ranks(plan: str, tmp_path: Path, spawner: Spawner) -> None:
    """Ranks on a device each give the parameters of the step on one."""
    options = PLANS[plan]
    ranks = options.get("d", 1) * options.get("t", 1) * options.get("p", 1)
    if ranks > COUNT:
        pytest.skip(f"needs {ranks} GPUs, there are {COUNT}")
    module = gpt_step("f32")
    entry = entry_function(module)
    given = [np.asarray(v) for v in random_arguments(module, 5)]
    alone = dict(zip(result_names(entry), run_here(module, given), strict=True))
    package = write_package(distributed(module, **options), tmp_path)
    inputs = dict(zip(argument_names(entry), given, strict=True))
    found = run_package(package, backend=BACKEND, inputs=inputs, spawner=spawner)
    assert found.keys() == alone.keys()
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4)


def test_compiled(tmp_path: Path, spawner: Spawner) -> None:
    """A compiled package gives what the eager one does."""
    module = gpt_step("f32")
    names = argument_names(entry_function(module))
    inputs = dict(zip(names, map(np.asarray, random_arguments(module, 5)), strict=True))
    outcomes = [
        run_package(
            write_package(module, tmp_path / str(compiled), compiled=compiled),
            backend=BACKEND,
            inputs=inputs,
            spawner=spawner,
        )
        for compiled in (False, True)
    ]
    for name, value in outcomes[0].items():
        np.testing.assert_allclose(outcomes[1][name], value, rtol=1e-3, atol=1e-4)
