"""Gradients of Fourier transforms, against differences and torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gradients.harness import GradientCase, check, integers, normal
from support.sharding_harness import Array

from distir.errors import DistIRError


def fourier(axis: int, inverse: bool = False) -> Callable[..., torch.Tensor]:
    """PyTorch's transform of numbers whose last dimension is real and imaginary parts."""

    def run(x: torch.Tensor, *_: object) -> torch.Tensor:
        if x.shape[-1] == 1:
            x = torch.cat([x, torch.zeros_like(x)], -1)
        values = torch.view_as_complex(x.contiguous())
        dim = axis % x.dim()
        function = torch.fft.ifft if inverse else torch.fft.fft
        return torch.view_as_real(function(values, dim=dim))

    return run


def half(x: Array, n: int | None = None) -> GradientCase:
    """The first half of the frequencies of real numbers `[..., size, 1]`."""

    def run(x: torch.Tensor, *_: object) -> torch.Tensor:
        return torch.view_as_real(torch.fft.rfft(x[..., 0], n, -1))

    return _of_length(x, n, run, {"onesided": 1})


def from_half(x: Array, n: int | None = None) -> GradientCase:
    """Real numbers of the first half of their frequencies `[..., size, 2]`."""

    def run(x: torch.Tensor, *_: object) -> torch.Tensor:
        values = torch.view_as_complex(x.contiguous())
        return torch.fft.irfft(values, n, -1).unsqueeze(-1)

    return _of_length(x, n, run, {"onesided": 1, "inverse": 1})


def whole(x: Array, n: int, inverse: int) -> GradientCase:
    """All frequencies of a signal that is cut, or that zeros follow."""

    def run(x: torch.Tensor, *_: object) -> torch.Tensor:
        values = torch.view_as_complex(x.contiguous())
        function = torch.fft.ifft if inverse else torch.fft.fft
        return torch.view_as_real(function(values, n, -1))

    return _of_length(x, n, run, {"inverse": inverse})


def _of_length(
    x: Array,
    n: int | None,
    run: Callable[..., torch.Tensor],
    attributes: dict[str, int],
) -> GradientCase:
    length = None if n is None else integers(n)
    return GradientCase(
        *("DFT", [x, length], attributes),
        constants=frozenset([1]),
        torch=run,
        label=f"{list(x.shape)}-{n}-{sorted(attributes.items())}",
    )


CASES = [
    GradientCase("DFT", [normal(2, 6, 2)], torch=fourier(-2)),
    GradientCase("DFT", [normal(2, 5, 1)], torch=fourier(-2)),
    GradientCase("DFT", [normal(2, 6, 2)], {"inverse": 1}, torch=fourier(-2, True)),
    GradientCase(
        *("DFT", [normal(4, 3, 1), None, integers(0)]),
        constants=frozenset([2]),
        torch=fourier(0),
    ),
    GradientCase(
        *("DFT", [normal(4, 3, 2), integers(3), integers(1)]),
        constants=frozenset([1, 2]),
        torch=fourier(1),
    ),
    *(half(normal(2, size, 1), n) for size in (5, 6) for n in (None, 4, 7)),
    *(from_half(normal(2, 4, 2), n) for n in (None, 4, 5, 7, 8, 9)),
    *(whole(normal(2, 5, 2), n, inverse) for n in (3, 8) for inverse in (0, 1)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: GradientCase) -> None:
    check(case)


def test_a_computed_length_has_no_rule() -> None:
    case = GradientCase("DFT", [normal(2, 6, 2), integers(8)], torch=fourier(-2))
    with pytest.raises(DistIRError, match="length is computed"):
        check(case)
