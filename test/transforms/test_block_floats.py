"""Products in blocks: near those of more bits, equal to PyTorch's, under any split."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.pipelines import distributed
from support.programs import parse
from support.thoroughness import chosen
from support.trained_steps import losses_of_steps
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import layout_of
from distir.dialects.train_ops.block_floats import (
    BLOCK_RECIPES,
    BlockLinearOp,
    BlockProductOp,
    QuantizeBlocksOp,
)
from distir.dialects.train_ops.float8 import Float8ScaleOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.hardware import load_cluster
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.expand_float8 import ExpandFloat8Pass
from distir.passes.float8 import Float8Pass
from distir.program import argument_names, entry_function, scope_of
from distir.runtime.operators import block_floats as runtime

Array = npt.NDArray[Any]
RATE = 0.5
RECIPES = tuple(BLOCK_RECIPES)
SHAPES = {"x": (64, 32), "w1": (32, 64), "w2": (96, 64), "b2": (96,), "w3": (96, 4)}
NETWORK = """
func.func @main(
  %x: tensor<64x32xf32> {dist.role = "input", dist.name = "x"},
  %w1: tensor<32x64xf32> {dist.role = "parameter", dist.name = "w1"},
  %w2: tensor<96x64xf32> {dist.role = "parameter", dist.name = "w2"},
  %b2: tensor<96xf32> {dist.role = "parameter", dist.name = "b2"},
  %w3: tensor<96x4xf32> {dist.role = "parameter", dist.name = "w3"}
) -> tensor<64x4xf32> {
  %h = onnx.MatMul(%x, %w1) {scope = "up"} : (tensor<64x32xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
  %a = onnx.Tanh(%h) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %g = onnx.Gemm(%a, %w2, %b2) {transB = 1 : i64, scope = "middle"} : (tensor<64x64xf32>, tensor<96x64xf32>, tensor<96xf32>) -> tensor<64x96xf32>
  %b = onnx.Tanh(%g) : (tensor<64x96xf32>) -> tensor<64x96xf32>
  %y = onnx.MatMul(%b, %w3) {scope = "head"} : (tensor<64x96xf32>, tensor<96x4xf32>) -> tensor<64x4xf32>
  func.return %y : tensor<64x4xf32>
}"""


def step(recipe: str | None, *, expanded: bool = True, text: str = NETWORK) -> ModuleOp:
    """The training step of the network, whose head stays as it is."""
    module = parse(text)
    if recipe is not None:
        Float8Pass(recipe).apply(Context(), module)
    train = DifferentiatePass(loss="mse", optimizer="sgd", learning_rate=RATE)
    train.apply(Context(), module)
    if expanded:
        ExpandFloat8Pass().apply(Context(), module)
    module.verify()
    return module


@cache
def values() -> dict[str, Array]:
    """Random arguments by name; rows of very different sizes."""
    rng = np.random.default_rng(3)
    found = {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in SHAPES.items()}
    found["x"] *= np.exp2(rng.integers(-9, 2, (64, 1))).astype(np.float32)
    targets = rng.normal(0, 1, (64, 4)).astype(np.float32)
    return found | {"targets": targets, "labels": targets}


def losses(module: ModuleOp) -> list[float]:
    """The losses of three steps, interpreted."""
    return losses_of_steps(module, values())


E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""The magnitudes of 4-bit floats: two bits of exponent, one of fraction."""

E4M3 = np.array(
    [f * 2.0**-9 for f in range(8)]
    + [(8 + f) * 2.0 ** (e - 3) for e in range(-6, 9) for f in range(8)][:-1]
)
"""The magnitudes of 8-bit floats: four bits of exponent, three of fraction, up to 448."""


def nearest(x: Array, grid: Array) -> Array:
    """The nearest numbers of a grid of magnitudes; of two, the one with an even place."""
    size = np.minimum(np.abs(x), grid[-1])
    above = np.clip(np.searchsorted(grid, size), 1, len(grid) - 1)
    low, high = size - grid[above - 1], grid[above] - size
    up = (high < low) | ((high == low) & (above % 2 == 0))
    return np.sign(x) * np.where(up, grid[above], grid[above - 1])


def left_of(x: Array, recipe: str, axis: int, square: bool = False) -> Array:
    """What is left of a matrix in blocks, in f64, by the definitions of the formats."""
    if axis == 0 and not square:
        return left_of(x.T, recipe, 1).T
    n = 32 if recipe == "mxfp8" else 16
    x = x.astype(np.float64)
    high = n if square else 1
    parts = x.reshape(x.shape[0] // high, high, x.shape[1] // n, n)
    amax = np.abs(parts).max((1, 3), keepdims=True)
    if recipe == "mxfp8":
        scale = 2.0 ** np.ceil(np.log2(amax / 448))
        return (nearest(parts / scale, E4M3) * scale).reshape(x.shape)
    whole = 448 * 6 / np.abs(x).max()
    scale = nearest(amax / 6 * whole, E4M3) / whole
    parts = np.divide(parts, scale, out=np.zeros_like(parts), where=scale != 0)
    return (nearest(parts, E2M1) * scale).reshape(x.shape)


class _Product(torch.autograd.Function):
    """A product whose factors lose bits, forwards and backwards."""

    @staticmethod
    def multiply(recipe: str, a: Any, b: Any, square: bool) -> torch.Tensor:
        """The product of what is left of both factors; `b` is a parameter if `square`."""
        left = left_of(a.numpy(), recipe, 1)
        right = left_of(b.numpy(), recipe, 0, square and recipe == "nvfp4")
        return torch.tensor(left @ right)

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, recipe: str) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.recipe = recipe
        return _Product.multiply(recipe, a.detach(), b.detach(), True)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:  # type: ignore[override]
        a, b = ctx.saved_tensors
        da = _Product.multiply(ctx.recipe, dy, b.T, True)
        return da, _Product.multiply(ctx.recipe, a.T, dy, False), None


def torch_losses(recipe: str) -> list[float]:
    """The losses of three steps of the network in PyTorch."""
    given = {n: torch.tensor(v.astype(np.float64)) for n, v in values().items()}
    trained = [given[n].requires_grad_() for n in ("w1", "w2", "b2", "w3")]
    optimizer, found = torch.optim.SGD(trained, RATE), list[float]()
    for _ in range(3):
        w1, w2, b2, w3 = trained
        h = torch.tanh(_Product.apply(given["x"], w1, recipe))
        h = torch.tanh(_Product.apply(h, w2.T, recipe) + b2)
        loss = torch.nn.functional.mse_loss(h @ w3, given["targets"])
        found.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_steps_are_those_of_pytorch(recipe: str) -> None:
    """PyTorch's are in f64 beside the narrow floats; without these, losses are others."""
    found = losses(step(recipe))
    np.testing.assert_allclose(found, torch_losses(recipe), 1e-4)
    plain = losses(step(None))
    np.testing.assert_allclose(found, plain, 0.1)
    assert not np.allclose(found, plain, 5e-4)


@pytest.mark.parametrize("recipe", RECIPES)
def test_spelled_out_or_not(recipe: str) -> None:
    module, spelled = step(recipe, expanded=False), step(recipe)
    assert any(isinstance(op, BlockLinearOp) for op in module.walk())
    assert not any(isinstance(op, BlockLinearOp) for op in spelled.walk())
    assert sum(isinstance(op, BlockProductOp) for op in spelled.walk()) == 5
    np.testing.assert_allclose(losses(spelled), losses(module), 1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "options",
    chosen(
        [{"t": 2}, {"d": 2, "t": 2}, {"d": 2, "zero": 3}, {"d": 4}],
        [{"d": 2, "t": 2}, {"d": 4}],
    ),
    ids=str,
)
def test_devices_change_nothing(recipe: str, options: dict[str, Any]) -> None:
    """
    With four parts of 16 rows, blocks of 32 rows are gathered for the gradients of weights.
    """
    split = distributed(step(recipe), **options)
    np.testing.assert_allclose(losses(split), losses(step(recipe)), 1e-5)


def test_micro_batches_have_whole_blocks() -> None:
    """Blocks of rows are in one micro-batch, so that nothing changes."""
    module = step("mxfp8")
    np.testing.assert_allclose(losses(distributed(module, k=2)), losses(module), 1e-6)
    layers = build_gpt(2, 32, 2, 32, 4, 16)
    for one in (Float8Pass("mxfp8"), DifferentiatePass(), ExpandFloat8Pass()):
        one.apply(Context(), layers)
    with pytest.raises(DistIRError, match=r"blocks of 32 rows.*fewer micro-batches"):
        distributed(layers, k=4)


def test_micro_batches_have_their_own_scales() -> None:
    """
    The scale of a whole tensor is one of each micro-batch, also where it goes from the forward
    to the backward function. Losses stay but for rounding.
    """
    module = build_gpt(2, 32, 2, 32, 4, 16)
    for one in (Float8Pass("nvfp4"), DifferentiatePass(), ExpandFloat8Pass()):
        one.apply(Context(), module)
    arguments = random_arguments(module, 0)
    found = run_program(distributed(module, p=2, k=2), arguments)
    np.testing.assert_allclose(found[0], run_program(module, arguments)[0], 1e-4)


def test_products_are_split_as_without() -> None:
    """All products are split over t, where blocks allow it."""
    module = build_gpt(2, 1024, 4, 64, 4, 128, "bf16")
    for one in (Float8Pass("mxfp8"), DifferentiatePass(), ExpandFloat8Pass()):
        one.apply(Context(), module)
    split = distributed(module, t=2)
    products = [op for op in split.walk() if isinstance(op, BlockProductOp)]
    assert len(products) == 12  # four a layer, each with two gradients
    for op in products:
        layouts = [layout_of(value) for value in op.operands]
        assert any(x and "t" in x.split_axes for x in layouts), scope_of(op)


def test_a_step_keeps_blocks() -> None:
    """
    The backward pass gets inputs of products in blocks, and not in 16 bits: the fewer bits,
    the less memory a step takes. A scale serves a tensor and its transpose.
    """
    peaks: list[int] = []
    for recipe in (None, "mxfp8", "nvfp4"):
        module = build_gpt(4, 256, 4, 256, 8, 512, "bf16")
        passes = [DifferentiatePass(), ExpandFloat8Pass()]
        for one in ([Float8Pass(recipe)] if recipe else []) + passes:
            one.apply(Context(), module)
        if recipe == "nvfp4":
            scales = [op for op in module.walk() if isinstance(op, Float8ScaleOp)]
            casts = [op for op in module.walk() if isinstance(op, QuantizeBlocksOp)]
            assert len(scales) < len(casts) == 24
        peaks.append(
            simulate(module, load_cluster("dgx-b200", None)).peak_memory_bytes[0]
        )
    assert peaks == sorted(peaks, reverse=True)


def test_sizes_that_are_no_whole_blocks() -> None:
    with pytest.raises(DistIRError, match=r"has 48 outputs.*blocks of 32 for mxfp8"):
        step("mxfp8", text=NETWORK.replace("96", "48"))
    step("nvfp4", text=NETWORK.replace("96", "48"))
    with pytest.raises(DistIRError, match=r"multiplies 24 rows.*another batch size"):
        step(
            "mxfp8",
            text=NETWORK.replace("<64x", "<24x").replace(
                "<24x96xf32> {", "<64x96xf32> {"
            ),
        )


def test_unused_blocks_are_dropped() -> None:
    """Without gradients, nothing is kept for them."""
    module = parse(NETWORK)
    Float8Pass("nvfp4").apply(Context(), module)
    ExpandFloat8Pass().apply(Context(), module)
    assert sum(isinstance(op, QuantizeBlocksOp) for op in module.walk()) == 4
    assert not any(op.name == "onnx.Reshape" for op in module.walk())


@pytest.mark.parametrize("recipe", RECIPES)
def test_zeros_and_numbers_that_are_not_finite(recipe: str) -> None:
    """Zeros stay zeros; a block with an infinity makes the loss NaN, and is not hidden."""
    module = step(recipe)
    arguments = [np.zeros_like(a) for a in random_arguments(module, 0)]
    for result in run_program(module, arguments):
        assert np.isfinite(result).all()
    names = argument_names(entry_function(module))
    arguments[names.index("x")][3, 5] = np.inf
    assert np.isnan(run_program(module, arguments)[0])


def test_scales_as_tensor_cores_read_them() -> None:
    """The order of cuBLAS: tiles of 128 x 4, written out element by element."""
    scale = torch.arange(200 * 6, dtype=torch.int64).reshape(200, 6).to(torch.uint8)
    found = runtime.swizzled(scale)
    wanted = torch.zeros(2 * 2 * 512, dtype=torch.uint8)
    for i in range(200):
        for j in range(6):
            tile = (i // 128) * 2 + j // 4
            place = (i % 32) * 16 + (i % 128 // 32) * 4 + j % 4
            wanted[512 * tile + place] = scale[i, j]
    assert torch.equal(found, wanted)
