"""Operations whose arguments PyTorch's exporter drops compute what PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import distir
from distir.errors import DistIRError
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function

WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.25, 3.0])
CLASSES = torch.tensor([0, 3, 2, 3, 4, 1])
MAPS = torch.arange(12).reshape(2, 2, 3) % 5


class _Applied(nn.Module):
    """A function of inputs times a parameter, and perhaps of labels."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.factor = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        x = x * self.factor
        return self.function(x) if labels is None else self.function(x, labels)


def _ce(**options: Any) -> Callable[..., Tensor]:
    return lambda x, labels: F.cross_entropy(x, labels, **options)


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


LOSSES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "smoothed": (_ce(label_smoothing=0.2), (_random(6, 5), CLASSES)),
    "weighted": (_ce(weight=WEIGHTS), (_random(6, 5), CLASSES)),
    "smoothed, weighted, some ignored": (
        _ce(label_smoothing=0.2, weight=WEIGHTS, ignore_index=3),
        (_random(6, 5), CLASSES),
    ),
    "sum, some ignored": (
        _ce(label_smoothing=0.2, ignore_index=3, reduction="sum"),
        (_random(6, 5), CLASSES),
    ),
    "smoothed maps": (
        _ce(label_smoothing=0.1, weight=WEIGHTS),
        (_random(2, 5, 2, 3), MAPS),
    ),
    "one sample": (_ce(label_smoothing=0.1), (_random(5), torch.tensor(2))),
    "fractions": (
        _ce(label_smoothing=0.1, weight=WEIGHTS),
        (_random(6, 5), _random(6, 5).softmax(1)),
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_losses_and_their_gradients(case: str) -> None:
    function, inputs = LOSSES[case]
    module = _Applied(function)
    step = distir.import_model(
        module, inputs, training=True, loss="none", optimizer="none"
    )
    loss = module(*inputs)
    loss.backward()
    assert module.factor.grad is not None
    found = _run(step, inputs)
    assert np.isclose(found[0], loss.item(), rtol=1e-5)
    np.testing.assert_allclose(found[1], module.factor.grad, rtol=1e-5)


def _run(program: Any, inputs: tuple[Tensor, ...]) -> list[Any]:
    given = iter(inputs)
    values = [
        program.weights[name] if name in program.weights else next(given).numpy()
        for name in argument_names(entry_function(program.module))
    ]
    return run_program(program.module, values)


def test_a_loss_of_each_sample() -> None:
    module = _Applied(_ce(label_smoothing=0.2, weight=WEIGHTS, reduction="none"))
    inputs = (_random(6, 5), CLASSES)
    (found,) = _run(distir.import_model(module, inputs), inputs)
    np.testing.assert_allclose(found, module(*inputs).detach(), rtol=1e-5)


def test_smoothed_losses_are_split() -> None:
    module = nn.Sequential(nn.Linear(6, 8, bias=False))
    forward = module.forward
    module.forward = lambda x, labels: _ce(label_smoothing=0.2)(forward(x), labels)
    step = distir.import_model(
        module,
        (_random(4, 6), torch.tensor([0, 3, 7, 2])),
        training=True,
        loss="none",
        optimizer="sgd",
    )
    plan = distir.distribute(step, cluster="cpu", d=2, t=2, shard=["0.weight:0=t"])
    assert distir.check(step, plan)


IMAGES: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "a divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (2, 2, 6, 8)),
    "a divisor in 3 dimensions": (
        lambda x: F.avg_pool3d(x, 2, padding=1, divisor_override=3),
        (1, 2, 4, 5, 6),
    ),
    "aligned corners": (
        lambda x: F.interpolate(
            x, scale_factor=1.5, mode="bilinear", align_corners=True
        ),
        (2, 2, 7, 9),
    ),
    "aligned corners, bicubic": (
        lambda x: F.interpolate(
            x, scale_factor=1.5, mode="bicubic", align_corners=True
        ),
        (2, 2, 7, 9),
    ),
    "a size of which a factor is rounded": (
        lambda x: F.interpolate(x, scale_factor=1.4, mode="trilinear"),
        (1, 2, 5, 6, 7),
    ),
    "nearest": (lambda x: F.interpolate(x, scale_factor=(0.6, 1.7)), (2, 2, 7, 9)),
    "nearest in 3 dimensions": (
        lambda x: F.interpolate(x, scale_factor=1.4, mode="nearest-exact"),
        (1, 2, 5, 6, 7),
    ),
}


@pytest.mark.parametrize("case", IMAGES)
def test_images(case: str) -> None:
    function, shape = IMAGES[case]
    module, x = _Applied(function), _random(*shape)
    step = distir.import_model(
        module, (x,), training=True, loss="mse", optimizer="none"
    )
    output = module(x)
    wanted = torch.arange(output.numel()).reshape(output.shape) % 7 - 3.0
    loss = F.mse_loss(output, wanted)
    loss.backward()
    assert module.factor.grad is not None
    found = _run(step, (x, wanted))
    assert np.isclose(found[0], loss.item(), rtol=1e-5)
    np.testing.assert_allclose(found[1], module.factor.grad, rtol=1e-4)


@pytest.mark.parametrize("heads", [1, 2])
def test_heads_that_several_queries_share(heads: int) -> None:
    def attention(x: Tensor) -> Tensor:
        few = x[:, :heads]
        return F.scaled_dot_product_attention(
            x, few, few * 2, is_causal=True, enable_gqa=True
        )

    module, x = _Applied(attention), _random(2, 4, 3, 8)
    (found,) = _run(distir.import_model(module, (x,)), (x,))
    np.testing.assert_allclose(found, module(x).detach(), rtol=1e-4, atol=1e-5)


class _Seeing(nn.Module):
    """Attention to a few heads with a mask of booleans."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.factor = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x * self.factor
        few = x[:, : self.heads]
        is_shared = self.heads < x.shape[1]
        return F.scaled_dot_product_attention(
            x, few, few * 2, seen, enable_gqa=is_shared
        )


@pytest.mark.parametrize("raised", [True, False], ids=["one op", "written out"])
@pytest.mark.parametrize("heads", [4, 2])
def test_queries_that_see_no_key(heads: int, raised: bool) -> None:
    """Their results and gradients are 0, in PyTorch too."""
    seen = torch.ones(2, 1, 3, 3, dtype=torch.bool).tril()
    seen[0, :, :, 0] = False  # a token of padding before a sequence
    module, inputs = _Seeing(heads), (_random(2, 4, 3, 8), seen)
    step = distir.import_model(
        module,
        inputs,
        training=True,
        loss="mse",
        optimizer="none",
        no_fused_attention=not raised,
    )
    names = [op.name for op in step.module.walk()]
    # One op does it all, without a choice of zeros behind it.
    assert ("train.attention" in names, names.count("onnx.Where") == 1) == (
        raised,
        raised,
    )
    output = module(*inputs)
    assert not output[0, :, 0].any()
    wanted = torch.arange(output.numel()).reshape(output.shape) % 7 - 3.0
    loss = F.mse_loss(output, wanted)
    loss.backward()
    assert module.factor.grad is not None
    found = _run(step, (*inputs, wanted))
    assert np.isclose(found[0], loss.item(), rtol=1e-5)
    np.testing.assert_allclose(found[1], module.factor.grad, rtol=1e-4)


def test_masks_that_show_each_query_a_key_cost_nothing() -> None:
    def attention(x: Tensor) -> Tensor:
        seen = torch.ones(3, 3, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(x, x, x, seen)

    program = distir.import_model(_Applied(attention), (_random(2, 4, 3, 8),))
    names = [op.name for op in program.module.walk()]
    assert "onnx.Attention" in names and "onnx.Where" not in names


def test_what_cannot_be_written_is_refused() -> None:
    means = _Applied(
        lambda x, places: torch.zeros(2, 3).scatter_reduce(0, places, x, "mean")
    )
    with pytest.raises(DistIRError, match="scatter_reduce with means"):
        distir.import_model(
            means, (_random(2, 3), torch.zeros(2, 3, dtype=torch.int64))
        )
    pool = _Applied(lambda x: F.avg_pool2d(x, 2, ceil_mode=True, divisor_override=3))
    with pytest.raises(DistIRError, match="divisor_override and ceil_mode"):
        distir.import_model(pool, (_random(2, 2, 7, 7),))
    table = nn.Embedding(4, 2, scale_grad_by_freq=True)
    with pytest.raises(DistIRError, match="scale_grad_by_freq"):
        distir.import_model(table, (torch.tensor([1, 2]),))


@pytest.mark.parametrize("scale", [0.3, 8**-0.5])
def test_numbers_of_64_bits_are_not_rounded(scale: float) -> None:
    """A number in a module's code, and the scale of attention, written out or not."""

    def attention(x: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(x, x, x, scale=scale) * 0.1
        weights = torch.softmax(y @ y.transpose(-2, -1) * scale, -1)
        return weights @ y

    module, x = _Applied(attention).double(), _random(2, 4, 3, 8).double()
    (found,) = _run(distir.import_model(module, (x,)), (x,))
    np.testing.assert_allclose(found, module(x).detach(), rtol=1e-13)
