"""
What generated programs call on CUDA, tried without a GPU.

Tensors have no values (`support/cuda_tensors.py`), but devices, types and shapes, with which
PyTorch checks every call.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.aten_calls import AtenCalls
from support.cuda_tensors import cuda_tensors
from support.lowering_cases import load_program, program_of, to_torch
from support.memory_programs import training_step
from support.sharding_harness import Case, sequential
from support.thoroughness import chosen, each_once
from support.train_cases import CASES
from support.training_programs import distributed
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Attribute

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.float8 import SCALINGS
from distir.frontends.models.basic import build_gpt
from distir.launch.packages import read_manifest
from distir.launch.timing_rank import load_package
from distir.lowering.program_source import program_source
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.expand_float8 import ExpandFloat8Pass
from distir.passes.float8 import Float8Pass
from distir.program import entry_function
from distir.runtime.layers import experts

FLASH = "_scaled_dot_product_flash_attention"
EFFICIENT = "_scaled_dot_product_efficient_attention"


def empty(type_: Attribute) -> Any:
    """A tensor of a type, on the device."""
    assert isinstance(type_, TensorType)
    return torch.empty(shape_of(type_), dtype=dtype_of(type_), device="cuda")


def dtype_of(type_: TensorType[Any]) -> torch.dtype:
    return to_torch(np.zeros((), numpy_dtype(type_.element_type))).dtype


def calls_on_cuda(
    module: ModuleOp, capability: tuple[int, int] = (9, 0)
) -> Counter[str]:
    """Runs a program and returns what it called; its results have the types that they should."""
    program = load_program(program_source(module))
    (rank,) = program.RANKS
    types = entry_function(module).function_type
    body = rank.program({}, rank.numbers)
    with cuda_tensors(body, capability):
        given = [empty(type_) for type_ in types.inputs]
        with AtenCalls() as calls:
            results = body.main(*given)
    if not isinstance(results, tuple):
        results = (results,)
    for found, type_ in zip(results, types.outputs, strict=True):
        assert isinstance(type_, TensorType)
        assert found.device.type == "cuda"
        assert found.dtype == dtype_of(type_)
        assert tuple(found.shape) == shape_of(type_)
    return calls.counts


def gpt(dtype: str, width: int = 32, training: bool = True) -> ModuleOp:
    module = build_gpt(
        layers=2, d_model=width, heads=4, vocab=64, batch=4, seq=16, dtype=dtype
    )
    if training:
        DifferentiatePass(optimizer="adamw").apply(Context(), module)
    return module


@pytest.mark.parametrize(
    ("dtype", "width"), each_once(["f32", "bf16", "f16"], [32, 48])
)
def test_attention_of_a_step(dtype: str, width: int) -> None:
    """
    Heads of 8 go to the kernel that PyTorch has for their type, forwards and backwards; heads
    of 12 too, which flash attention takes with zeros behind them.
    """
    calls = calls_on_cuda(gpt(dtype, width))
    kernel = EFFICIENT if dtype == "f32" else FLASH
    other = FLASH if dtype == "f32" else EFFICIENT
    assert calls[kernel] == calls[f"{kernel}_backward"] == 2
    assert calls[other] == 0 and calls["_fused_adamw_"] >= 1


def step_in_8_bits(recipe: str) -> tuple[ModuleOp, int]:
    """A training step with products in narrow floats, and their number."""
    module = gpt("bf16", training=False)
    Float8Pass(scaling=recipe, keep=("lm_head",)).apply(Context(), module)
    DifferentiatePass(optimizer="sgd", momentum=0.9).apply(Context(), module)
    ExpandFloat8Pass().apply(Context(), module)
    names = ("train.float8_product", "train.block_product")
    return module, sum(op.name in names for op in module.walk())


@pytest.mark.parametrize("scaling", SCALINGS)
def test_products_in_8_bits(scaling: str) -> None:
    """The tensor cores take every product in 8 bits, with scales of tensors or of rows."""
    module, products = step_in_8_bits(scaling)
    calls = calls_on_cuda(module)
    assert calls["_scaled_mm"] >= products > 0
    assert calls["_fused_sgd_"] == 1


def test_products_in_blocks() -> None:
    """Blackwell's tensor cores take blocks of 8 bits; those of Hopper do not."""
    module, products = step_in_8_bits("mxfp8")
    assert calls_on_cuda(module)["_scaled_mm"] == 0
    assert calls_on_cuda(module, (10, 0))["_scaled_mm"] >= products > 0


@pytest.mark.parametrize("transposed", [False, True])
def test_experts(transposed: bool) -> None:
    """The products of all experts are one call, and so are their gradients, in bf16."""
    with cuda_tensors(torch.nn.Module()):
        x, dy = (
            torch.empty(2, 4, 8, n, dtype=torch.bfloat16, device="cuda")
            for n in (16, 32)
        )
        shape = (4, 32, 16) if transposed else (4, 16, 32)
        matrices = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        rows = torch.empty(2, 4, 8, dtype=torch.int64, device="cuda")
        with AtenCalls() as calls:
            product = experts.grouped_product(x, rows, matrices, transposed)
            grad = experts.grouped_product_grad(x, rows, dy, 4, transposed)
    assert (product.shape, grad.shape) == (dy.shape, shape)
    assert calls.counts["_grouped_mm"] == 2


PLANS: dict[str, dict[str, Any]] = {
    "d2": {"d": 2},
    "sequence": {"t": 2, "sequence_parallel": True, "overlap": True},
    "zero3": {"d": 2, "zero": 3, "overlap": True},
    "d2-t2-p2": {"d": 2, "t": 2, "p": 2, "k": 2},
}


@pytest.mark.parametrize("plan", chosen(PLANS, ["sequence", "d2-t2-p2"]))
def test_ranks(plan: str, tmp_path: Path) -> None:
    """Ranks with tensors on a device, among others that nobody hears, have the right results."""
    folder = write_package(distributed(gpt("bf16"), **PLANS[plan]), tmp_path)
    program, runtime, _ = load_package(str(folder), f"cuda_{tmp_path.name}")
    for (
        rank,
        *_,
    ) in read_manifest(folder)["classes"]:
        own = program.RANKS[rank].program
        size = len(program.RANKS)
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            body = runtime.body_of(program, rank, torch.device("cpu"))
            with cuda_tensors(body):
                given = [
                    part(runtime, program, program.ARGUMENTS[i]) for i in own.arguments
                ]
                results = runtime.results_of(body, given)
        finally:
            dist.destroy_process_group()
        for found, i in zip(results, own.results, strict=True):
            spec = program.RESULTS[i]
            shape = runtime.local_shape(spec, program.MESHES.get(spec.mesh))
            assert (found.device.type, found.dtype) == ("cuda", spec.dtype)
            assert tuple(found.shape) == tuple(shape)


def part(runtime: Any, program: Any, spec: Any) -> Any:
    """A process's part of an argument."""
    if spec.default is not None:
        return spec.default
    shape = runtime.local_shape(spec, program.MESHES.get(spec.mesh))
    return torch.empty(shape, dtype=spec.dtype, device="cuda")


FAMILIES = ("gpt", "llama", "bert", "moe", "resnet", "mlp")


@pytest.mark.parametrize("family", chosen(FAMILIES, ["gpt"]))
def test_steps(family: str) -> None:
    """Training steps of all families run to the end."""
    assert calls_on_cuda(training_step(family))


AUTOGRAD = tuple(
    f"train.{form}{kind}_grad"
    for form in ("", "gathered_")
    for kind in ("rnn", "gru", "lstm")
)
"""Gradients that PyTorch's autograd computes, which needs threads for the device."""


OPS = [case for case in CASES if case.name not in AUTOGRAD]
ON_CUDA = ("attention", "norm_grad", "layer_norm", "rms_norm", "float8", "grouped")
"""Parts of the names of ops for which there are kernels for CUDA alone."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            marks=() if any(n in case.name for n in ON_CUDA) else pytest.mark.slow,
            id=str(case),
        )
        for case in OPS
    ],
)
def test_ops_of_training(case: Case) -> None:
    """Every op of a training step gives a result of the right type."""
    plain = sequential(case)
    module = program_of(plain)
    try:
        calls_on_cuda(module)
    except (DataDependentOutputException, DynamicOutputShapeException):
        pytest.skip("what it calls depends on values")
    except (AssertionError, RuntimeError) as error:
        # The second one is what PyTorch's GRU says.
        without = (
            *("not linked with support for cuda", "not compiled with CUDA"),
            "CUDA driver version is insufficient",  # a build for CUDA, and no GPU
        )
        if not any(text in str(error) for text in without):
            raise
        pytest.skip("PyTorch without CUDA cannot try it")
