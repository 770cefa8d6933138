"""Products in 8-bit floats: equal to PyTorch's, near those of more bits, under any split."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.pipelines import assert_same, distributed
from support.programs import parse
from support.trained_steps import losses_of_steps
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.over_axes import AllReduceOp
from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.float8 import (
    Float8LinearOp,
    Float8ProductOp,
    Float8ScaleOp,
    ToFloat8Op,
)
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.passes.expand_float8 import ExpandFloat8Pass
from distir.passes.float8 import Float8Pass
from distir.program import argument_names, entry_function, scope_of

RATE = 0.5
NETWORK = """
func.func @main(
  %x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
  %w1: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w1"},
  %w2: tensor<32x32xf32> {dist.role = "parameter", dist.name = "w2"},
  %b2: tensor<32xf32> {dist.role = "parameter", dist.name = "b2"},
  %w3: tensor<32x4xf32> {dist.role = "parameter", dist.name = "w3"}
) -> tensor<8x4xf32> {
  %h = onnx.MatMul(%x, %w1) {scope = "up"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %a = onnx.Tanh(%h) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %g = onnx.Gemm(%a, %w2, %b2) {transB = 1 : i64, scope = "middle"} : (tensor<8x32xf32>, tensor<32x32xf32>, tensor<32xf32>) -> tensor<8x32xf32>
  %b = onnx.Tanh(%g) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %y = onnx.MatMul(%b, %w3) {scope = "head"} : (tensor<8x32xf32>, tensor<32x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}"""


def step(scaling: str | None, *, expanded: bool = True) -> ModuleOp:
    """The training step of the network, whose head stays as it is."""
    module = parse(NETWORK)
    context = Context()
    if scaling is not None:
        Float8Pass(scaling).apply(context, module)
    train = DifferentiatePass(loss="mse", optimizer="sgd", learning_rate=RATE)
    train.apply(context, module)
    if expanded:
        ExpandFloat8Pass().apply(context, module)
    module.verify()
    return module


@cache
def values() -> dict[str, npt.NDArray[Any]]:
    """Random arguments by name; activations and gradients of very different sizes."""
    rng = np.random.default_rng(3)
    shapes = {"x": (8, 16), "w1": (16, 32), "w2": (32, 32), "b2": (32,), "w3": (32, 4)}
    found = {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in shapes.items()}
    targets = rng.normal(0, 1, (8, 4)).astype(np.float32)
    return found | {"targets": targets, "labels": targets}


def losses(module: ModuleOp) -> list[float]:
    """The losses of three steps, interpreted."""
    return losses_of_steps(module, values())


class _Product(torch.autograd.Function):
    """PyTorch's own 8-bit floats, with scales as torchao's recipes take them."""

    @staticmethod
    def narrow(x: torch.Tensor, dtype: torch.dtype, dim: int | None) -> torch.Tensor:
        """The numbers that are left of `x`, in its own type."""
        largest = torch.finfo(dtype).max
        amax = x.abs().max() if dim is None else x.abs().amax(dim, keepdim=True)
        scale = largest / amax.clamp(min=1e-12)
        return (x * scale).clamp(-largest, largest).to(dtype).to(x.dtype) / scale

    @staticmethod
    def multiply(
        a: torch.Tensor, b: torch.Tensor, types: list[torch.dtype], rows: bool
    ) -> torch.Tensor:
        """The product by way of these types."""
        narrow = _Product.narrow
        dims = (1, 0) if rows else (None, None)
        return narrow(a, types[0], dims[0]) @ narrow(b, types[1], dims[1])

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, scaling: str) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.scaling = scaling
        e4m3 = torch.float8_e4m3fn
        return _Product.multiply(a, b, [e4m3, e4m3], scaling != "tensor")

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:  # type: ignore[override]
        a, b = ctx.saved_tensors
        e4m3, e5m2, rows = (
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            ctx.scaling != "tensor",
        )
        da = _Product.multiply(dy, b.T, [e5m2, e4m3], rows)
        if ctx.scaling == "row-gw-hp":
            return da, a.T @ dy, None
        return da, _Product.multiply(a.T, dy, [e4m3, e5m2], rows), None


def torch_losses(scaling: str) -> list[float]:
    """The losses of three steps of the network in PyTorch."""
    given = {n: torch.tensor(v.astype(np.float64)) for n, v in values().items()}
    trained = [given[n].requires_grad_() for n in ("w1", "w2", "b2", "w3")]
    optimizer, found = torch.optim.SGD(trained, RATE), list[float]()
    for _ in range(3):
        w1, w2, b2, w3 = trained
        h = torch.tanh(_Product.apply(given["x"], w1, scaling))
        h = torch.tanh(_Product.apply(h, w2.T, scaling) + b2)
        loss = torch.nn.functional.mse_loss(h @ w3, given["targets"])
        found.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


@pytest.mark.parametrize("scaling", ["tensor", "row", "row-gw-hp"])
def test_steps_are_those_of_pytorch(scaling: str) -> None:
    """PyTorch's are in f64 beside the 8 bits; without these bits, losses are others."""
    found = losses(step(scaling))
    np.testing.assert_allclose(found, torch_losses(scaling), 1e-5)
    plain = losses(step(None))
    np.testing.assert_allclose(found, plain, 0.03)
    assert not np.allclose(found, plain, 1e-4)


@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_spelled_out_or_not(scaling: str) -> None:
    module = step(scaling, expanded=False)
    assert any(isinstance(op, Float8LinearOp) for op in module.walk())
    spelled = step(scaling)
    assert not any(isinstance(op, Float8LinearOp) for op in spelled.walk())
    np.testing.assert_allclose(losses(spelled), losses(module), 1e-6)


@pytest.mark.parametrize("scaling", ["tensor", "row", "row-gw-hp"])
@pytest.mark.parametrize(
    "options", [{"t": 2}, {"d": 2, "t": 2}, {"d": 2, "zero": 3}], ids=str
)
def test_devices_change_nothing(scaling: str, options: dict[str, Any]) -> None:
    """Scales are those of whole tensors, wherever their parts are."""
    split = distributed(step(scaling), **options)
    np.testing.assert_allclose(losses(split), losses(step(scaling)), 1e-6)


def float8_gpt(
    width: int, *, length: int = 8, dtype: str = "bf16", scaling: str = "tensor"
) -> ModuleOp:
    """The training step of a GPT with such products."""
    module = build_gpt(2, width, 4, 64, 4, length, dtype)
    for one in (Float8Pass(scaling), DifferentiatePass(), ExpandFloat8Pass()):
        one.apply(Context(), module)
    return module


@pytest.mark.parametrize(
    "options",
    [
        {"t": 3, "overlap": True, "overlapped": ("tp",)},
        {"d": 2, "c": 2, "context_order": "cyclic", "zero": 2, "buckets": False}
        | {"checkpoint": "products"},
    ],
    ids=str,
)
def test_rows_that_are_split_have_one_scale(options: dict[str, Any]) -> None:
    """
    In f32, where other orders of sums move nothing to another number of 8 bits: a scale of a
    part of a row would, and results would differ by several percent.
    """
    assert_same(float8_gpt(12, dtype="f32", scaling="row"), **options)


def test_products_are_split_as_without() -> None:
    """All products over t; what is sent for scales is a number for each."""
    split = distributed(float8_gpt(1024, length=128), t=2)
    products = [op for op in split.walk() if isinstance(op, Float8ProductOp)]
    assert len(products) == 12  # four a layer, each with two gradients
    for op in products:
        layouts = [layout_of(value) for value in op.operands]
        assert any(x and "t" in x.split_axes for x in layouts), scope_of(op)
    scales = [
        op
        for op in split.walk()
        if isinstance(op, AllReduceOp) and isinstance(op.source.owner, Float8ScaleOp)
    ]
    assert scales and all(shape_of(op.source) == () for op in scales)


def test_a_gpt_in_16_bits_has_the_same_loss() -> None:
    module = float8_gpt(64)
    arguments = random_arguments(module, 0)
    found = run_program(distributed(module, t=2), arguments)
    np.testing.assert_allclose(found[0], run_program(module, arguments)[0], 1e-3)


def test_micro_batches_with_scales_of_rows() -> None:
    """Rows belong to one micro-batch, so that nothing changes."""
    module = step("row-gw-hp")
    split = distributed(module, k=2)
    np.testing.assert_allclose(losses(split), losses(module), 1e-6)


@pytest.mark.parametrize("scaling", ["tensor", "row"])
@pytest.mark.parametrize("options", [{}, {"d": 2}], ids=str)
def test_micro_batches_have_their_own_scales(
    scaling: str, options: dict[str, int]
) -> None:
    """
    A scale of the whole batch would have to be known before its first part. Losses stay but
    for rounding; the first is the mean of those of the micro-batches by themselves.
    """
    split = distributed(step(scaling), k=2, **options)
    found = losses(split)
    np.testing.assert_allclose(found, losses(step(scaling)), 2e-2)
    assert found != losses(step(scaling))
    parts: list[float] = []
    for first in (0, 4):
        half = values() | {
            name: values()[name][first : first + 4]
            for name in ("x", "targets", "labels")
        }
        text = NETWORK.replace("<8x", "<4x")
        module = parse(text)
        for one in (
            Float8Pass(scaling),
            DifferentiatePass(loss="mse", optimizer="sgd", learning_rate=RATE),
            ExpandFloat8Pass(),
        ):
            one.apply(Context(), module)
        given = [half[name] for name in argument_names(entry_function(module))]
        parts.append(float(run_program(module, given)[0]))
    np.testing.assert_allclose(found[0], np.mean(parts), 1e-6)


def test_a_pipeline_in_8_bits() -> None:
    module = float8_gpt(16, dtype="f32")
    arguments = random_arguments(module, 0)
    found = run_program(distributed(module, p=2, k=2), arguments)
    np.testing.assert_allclose(found[0], run_program(module, arguments)[0], 1e-2)


def scopes(*keep: str) -> list[str]:
    """The scopes of the products in 8 bits."""
    module = parse(NETWORK)
    Float8Pass("row", keep).apply(Context(), module)
    return [scope_of(op) for op in module.walk() if isinstance(op, Float8LinearOp)]


def test_what_stays_as_it_is() -> None:
    """The head, unless it is said otherwise."""
    assert scopes() == ["up", "middle"]
    assert scopes("none") == ["up", "middle", "head"]
    assert scopes("up", "h*") == ["middle"]
    with pytest.raises(DistIRError, match=r"matches 'top'.*up, middle, head"):
        scopes("top")
    with pytest.raises(DistIRError, match="keep fewer"):
        scopes("*")
    with pytest.raises(DistIRError, match="tensor, row, row-gw-hp"):
        Float8Pass("tensorwise").apply(Context(), parse(NETWORK))


def test_equal_views_are_rounded_once() -> None:
    """
    Two products of a tensor with two dimensions of rows. Forward: it and both weights.
    Backward: each gradient once for both of its products, the weights transposed, and
    the input, as a transposed matrix, for both of them.
    """
    module = parse("""
    func.func @main(%p: tensor<2x16x32xf32> {dist.role = "parameter", dist.name = "p"},
                    %a: tensor<32x48xf32> {dist.role = "parameter", dist.name = "a"},
                    %b: tensor<32x48xf32> {dist.role = "parameter", dist.name = "b"}) -> tensor<2x16x48xf32> {
      %x = onnx.Tanh(%p) : (tensor<2x16x32xf32>) -> tensor<2x16x32xf32>
      %1 = onnx.MatMul(%x, %a) : (tensor<2x16x32xf32>, tensor<32x48xf32>) -> tensor<2x16x48xf32>
      %2 = onnx.MatMul(%x, %b) : (tensor<2x16x32xf32>, tensor<32x48xf32>) -> tensor<2x16x48xf32>
      %3 = onnx.Tanh(%2) : (tensor<2x16x48xf32>) -> tensor<2x16x48xf32>
      %4 = onnx.Mul(%1, %3) : (tensor<2x16x48xf32>, tensor<2x16x48xf32>) -> tensor<2x16x48xf32>
      func.return %4 : tensor<2x16x48xf32>
    }""")
    Float8Pass(keep=("none",)).apply(Context(), module)
    DifferentiatePass(optimizer="sgd").apply(Context(), module)
    arguments = random_arguments(module, seed=1)
    before = run_program(module, arguments)
    ExpandFloat8Pass().apply(Context(), module)
    assert sum(isinstance(op, ToFloat8Op) for op in module.walk()) == 3 + 2 + 2 + 1
    after = run_program(module, arguments)
    for wanted, got in zip(before, after, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_zeros_have_a_scale() -> None:
    """A tensor of zeros is one of zeros in 8 bits; nothing is divided by zero."""
    module = step("tensor")
    arguments = [np.zeros_like(a) for a in random_arguments(module, 0)]
    for result in run_program(module, arguments):
        assert np.isfinite(result).all()
    assert any(isinstance(op, Float8ScaleOp) for op in module.walk())
