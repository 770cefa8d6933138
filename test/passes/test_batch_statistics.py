"""Batch normalisation written out computes the same, and so do its gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.imported_programs import imported
from support.programs import parse
from support.thoroughness import IS_THOROUGH
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.frontends.models.resnet import build_wide_resnet
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.batch_statistics import BatchStatisticsPass
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_names, entry_function, result_names


def program(element: str, space: str) -> ModuleOp:
    """A convolution's worth of batch normalisation in training mode."""
    x, v = f"tensor<4x3{space}x{element}>", "tensor<3xf64>"
    return parse(f"""
        func.func @main(
            %x: {x} {{dist.role = "parameter", dist.name = "x"}},
            %s: {v} {{dist.role = "parameter", dist.name = "s"}},
            %b: {v} {{dist.role = "parameter", dist.name = "b"}},
            %m: {v} {{dist.role = "state", dist.name = "m"}},
            %r: {v} {{dist.role = "state", dist.name = "r"}}) -> ({x}, {v}, {v}) {{
          %y, %n, %q = onnx.BatchNormalization(%x, %s, %b, %m, %r)
            {{training_mode = 1 : i64, momentum = 0.75 : f32}}
            : ({x}, {v}, {v}, {v}, {v}) -> ({x}, {v}, {v})
          func.return %y, %n, %q : {x}, {v}, {v}
        }}""")


def values_of(module: ModuleOp) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.uniform(0.5, 2, t.get_shape()).astype(numpy_dtype(t.element_type))
        for t in entry_function(module).function_type.inputs.data
    ]


EPSILON = float(np.float32(1e-5))
FORMS = [("f64", "x2x2", 1e-10), ("f64", "", 1e-10), ("f32", "x2", 1e-5)]


@pytest.mark.parametrize(("element", "space", "tolerance"), FORMS)
def test_same_results(element, space, tolerance):
    plain, written = program(element, space), program(element, space)
    BatchStatisticsPass().apply(Context(), written)
    written.verify()
    values = values_of(plain)
    found = zip(run_program(plain, values), run_program(written, values), strict=True)
    for a, b in found:
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("element", "space", "tolerance"), FORMS)
def test_gradients_are_those_of_torch(element, space, tolerance):
    module = program(element, space)
    DifferentiatePass(loss="mse", optimizer="none").apply(Context(), module)
    module.verify()
    names = argument_names(entry_function(module))
    values = values_of(module)
    found = run_program(module, values)
    given = {n: torch.tensor(v) for n, v in zip(names, values, strict=True)}
    wanted = [given[n].requires_grad_() for n in ("x", "s", "b")]
    x, scale, bias = (v.to(torch.float64) for v in wanted)
    out = F.batch_norm(x, None, None, scale, bias, True, eps=float(np.float32(1e-5)))
    loss = F.mse_loss(out, given["labels"].to(torch.float64))
    for ours, theirs in zip(found[1:], torch.autograd.grad(loss, wanted), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=tolerance, atol=tolerance)


def test_parts_are_what_each_device_and_micro_batch_has_in_torch():
    """
    Results, gradients, and the running statistics of the first device, which sees its
    samples of one micro-batch after the other.
    """
    x, v = "tensor<12x3x2xf64>", "tensor<3xf64>"
    module = parse(f"""
        func.func @main(
            %x: {x} {{dist.role = "parameter", dist.name = "x"}},
            %s: {v} {{dist.role = "parameter", dist.name = "s"}},
            %b: {v} {{dist.role = "parameter", dist.name = "b"}},
            %m: {v} {{dist.role = "constant", dist.name = "m"}},
            %r: {v} {{dist.role = "constant", dist.name = "r"}}) -> {x} {{
          %y, %n, %q = onnx.BatchNormalization(%x, %s, %b, %m, %r)
            {{training_mode = 1 : i64, momentum = 0.75 : f32}}
            : ({x}, {v}, {v}, {v}, {v}) -> ({x}, {v}, {v})
          func.return %y : {x}
        }}""")
    DifferentiatePass(
        loss="mse",
        optimizer="none",
        batch_norm_devices=2,
        batch_norm_micro_batches=3,
    ).apply(Context(), module)
    module.verify()
    values = values_of(module)
    entry = entry_function(module)
    found = run_program(module, values)
    results = dict(zip(result_names(entry), found, strict=True))
    names = argument_names(entry)
    given = {n: torch.tensor(v) for n, v in zip(names, values, strict=True)}
    wanted = [given[n].requires_grad_() for n in ("x", "s", "b")]
    devices = [(given["m"].clone(), given["r"].clone()) for _ in range(2)]
    outputs = [
        F.batch_norm(part, *devices[i % 2], *wanted[1:], True, 0.25, EPSILON)
        for i, part in enumerate(wanted[0].chunk(6))
    ]
    loss = F.mse_loss(torch.cat(outputs), given["labels"])
    np.testing.assert_allclose(results["loss"], loss.item(), rtol=1e-10)
    for name, theirs in zip("xsb", torch.autograd.grad(loss, wanted), strict=True):
        ours = results[f"{name}.gradient"]
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-12)
    for name, theirs in zip("mr", devices[0], strict=True):
        np.testing.assert_allclose(results[name], theirs.numpy(), rtol=1e-7)


def test_parts_in_a_distributed_program():
    """A ResNet with stages, micro-batches and split samples: all results are equal."""
    if IS_THOROUGH:
        sequential = build_wide_resnet(50, 2, 8, 32, 5, trains=True)
    else:
        sequential = imported("resnet_train").module.clone()
    DifferentiatePass(
        loss="cross_entropy",
        optimizer="sgd",
        batch_norm_devices=2,
        batch_norm_micro_batches=2,
    ).apply(Context(), sequential)
    parts = distributed(sequential, d=2, p=2, k=2)
    values = random_arguments(sequential, 0)
    expected = run_program(sequential, values)
    for ours, theirs in zip(run_program(parts, values), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
