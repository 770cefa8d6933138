"""Inputs of 8-bit products are kept in 8 bits for the backward, which computes what it did."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from distir.dialects.tensors import element_type
from distir.dialects.train_ops.float8 import Float8ScaleOp, is_float8
from distir.frontends.models.llama import build_llama
from distir.gradients.call_pairs import saved_values
from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.float8 import Float8Pass
from distir.program import functions
from distir.transforms.precision import float8


@functools.cache
def steps(scaling: str = "tensor", width: int = 16) -> tuple[ModuleOp, ModuleOp]:
    """A training step of a LLaMA whose inputs are kept in 16 bits, and in 8."""
    module = build_llama(
        layers=2, d_model=width, heads=2, kv_heads=2, vocab=32, batch=8, seq=8,
        ffn=2 * width, dtype="bf16",
    )  # fmt: skip
    for one in (Float8Pass(scaling), DifferentiatePass(optimizer="adam")):
        one.apply(Context(), module)
    plain, saved = module.clone(), module
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(float8, "save_rounded_inputs", lambda module: None)
        float8.expand_float8(plain)
    float8.expand_float8(saved)
    return plain, saved


def backward(module: ModuleOp) -> FuncOp:
    (found,) = (f for f in functions(module).values() if saved_values(f))
    return found


def kept(module: ModuleOp) -> int:
    """The number of arguments of the backward that are in 8 bits."""
    return sum(is_float8(element_type(arg)) for arg in backward(module).args)


def distributed(module: ModuleOp, **options: Any) -> ModuleOp:
    module = module.clone()
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(load_cluster("dgx-h100"), first)
    DistributePass(**options).apply(Context(), module)
    module.verify()
    return module


def test_results_are_the_same_to_the_bit() -> None:
    plain, saved = steps()
    saved.verify()
    arguments = random_arguments(plain, 0)
    for a, b in zip(
        run_program(plain, arguments), run_program(saved, arguments), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_the_inputs_that_are_kept() -> None:
    """
    Those of q, k and v together, of the projection behind attention, of gate and up together,
    and of the last product. The backward scales gradients and parameters only.
    """
    plain, saved = steps()
    assert (kept(plain), kept(saved)) == (0, 4)
    scaled = [op.x for op in backward(saved).walk() if isinstance(op, Float8ScaleOp)]
    assert len(scaled) == len(set(scaled)) == 14  # seven gradients, seven parameters


def test_scales_of_rows_belong_to_one_product() -> None:
    """A gradient needs scales along the other dimension, thus the input itself."""
    plain, saved = steps("row")
    assert kept(plain) == kept(saved) == 0
    assert str(plain) == str(saved)


PLANS = {
    "tensor": {"t": 2, "sequence_parallel": True},
    "kept gathered": {"t": 2, "sequence_parallel": True, "keep_gathered": True},
    "products again": {"d": 2, "checkpoint": "products"},
    "all again": {"d": 2, "checkpoint": "full", "zero": 3, "overlap": True},
    "in the host": {"t": 2, "checkpoint": "offload"},
    "micro-batches": {"d": 2, "k": 2},
    "stages": {"p": 2, "k": 2, "t": 2},
    "sequences": {"c": 2},
}


@pytest.mark.parametrize("plan", chosen(PLANS, quick=["tensor", "stages"]))
def test_devices_compute_what_they_did(plan: str) -> None:
    """Distributed, both programs give the same results but for orders of sums."""
    plain, saved = steps()
    arguments = random_arguments(plain, 0)
    both = [distributed(module, **PLANS[plan]) for module in (plain, saved)]
    for a, b in zip(*(run_program(m, arguments) for m in both), strict=True):
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=2e-2, atol=1e-3
        )


def test_less_memory_is_taken() -> None:
    """Four inputs of width 16, or 32 for the last, of a layer are half as large."""
    peaks = [
        max(simulate(distributed(module, d=1)).peak_memory_bytes) for module in steps()
    ]
    assert peaks[1] < peaks[0]
