"""Functions that PyTorch's exporter cannot write: imported, trained, and equal to PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from xdsl.context import Context

from distir.errors import DistIRError
from distir.frontends.torch.importer import import_torch
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.program import argument_names, entry_function, result_names


class Scaled(nn.Module):
    """A function of an input times a parameter, and the mean of its square as a loss."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3, 3) + torch.eye(3))
        self.function = function

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.function(x @ self.scale, *others).square().mean()


def ctc(x: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    steps = torch.full_like(labels, 4)
    logarithms = x.log_softmax(-1)
    each = F.ctc_loss(logarithms, targets, steps, labels, reduction="none")
    mean = nn.CTCLoss(blank=1, zero_infinity=True)(logarithms, targets, steps, labels)
    return torch.cat([each, mean[None]])


TARGETS = torch.tensor([[2, 2, 2], [2, 2, 2]]), torch.tensor([1, 2])
CASES: list[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]] = [
    ("cumprod", lambda x: torch.cumprod(x, -1), ()),
    ("method", lambda x: x.cumprod(dim=1), ()),
    ("slogdet", lambda x: torch.linalg.slogdet(x[:, :3]).logabsdet, ()),
    ("logdet", lambda x: torch.logdet(x[:, :3] @ x[:, :3].mT), ()),
    ("ctc", ctc, TARGETS),
    (
        "amax",
        lambda x: x.flatten().scatter_reduce(
            0, torch.arange(24) % 5, x.flatten(), "amax"
        ),
        (),
    ),
    (
        "rfft",
        lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * 2, n=4, dim=1) * x,
        (),
    ),
    (
        "grid",
        lambda x: F.grid_sample(
            x[None], x.flatten()[:24].reshape(1, 2, 6, 2).tanh(), align_corners=False
        ),
        (),
    ),
]


@pytest.mark.parametrize(
    ("function", "others"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_a_step_is_that_of_pytorch(
    function: Callable[..., Tensor], others: tuple[Tensor, ...]
) -> None:
    torch.manual_seed(1)
    shape = (2, 4, 3) if not others else (4, 2, 3)
    module, x = Scaled(function).double(), torch.rand(shape).double() + 0.5
    imported = import_torch(module, (x, *others), exporter="dynamo")
    FoldShapesPass().apply(Context(), imported.module)
    DifferentiatePass("none", optimizer="none").apply(Context(), imported.module)
    entry = entry_function(imported.module)
    given = iter([x.numpy(), *(o.numpy() for o in others)])
    values: list[Any] = [
        imported.weights[n] if n in imported.weights else next(given)
        for n in argument_names(entry)
    ]
    found = dict(
        zip(result_names(entry), run_program(imported.module, values), strict=True)
    )
    loss = module(x, *others)
    loss.backward()
    assert module.scale.grad is not None
    (gradient,) = (v for v in found.values() if np.shape(v) == (3, 3))
    np.testing.assert_allclose(
        gradient, module.scale.grad.numpy(), rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(
        next(v for v in found.values() if np.shape(v) == ()), loss.item(), rtol=1e-6
    )


def test_a_product_of_integers_is_one_of_64_bits() -> None:
    class Products(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cumprod(x, 0)

    x = torch.tensor([3, 4, 5], dtype=torch.int32)
    imported = import_torch(Products(), (x,), exporter="dynamo")
    (found,) = run_program(imported.module, [x.numpy()])
    assert found.dtype == np.int64
    assert found.tolist() == [3, 12, 60]


def test_targets_in_one_dimension_are_refused() -> None:
    class Loss(nn.Module):
        def forward(self, x: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
            return F.ctc_loss(
                x.log_softmax(-1), targets, torch.full_like(labels, 4), labels
            )

    flat = torch.tensor([1, 2, 2])
    with pytest.raises(DistIRError, match=r"give targets \[samples, labels\]"):
        import_torch(Loss(), (torch.rand(4, 2, 3), flat, torch.tensor([1, 2])))
