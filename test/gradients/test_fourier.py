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
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: GradientCase) -> None:
    check(case)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([normal(2, 6, 1)], {"onesided": 1}, "half of the frequencies"),
        ([normal(2, 6, 2), integers(8)], {}, "pads or cuts"),
    ],
)
def test_what_has_no_rule(
    inputs: list[Array], attributes: dict[str, int], message: str
) -> None:
    with pytest.raises(DistIRError, match=message):
        check(
            GradientCase(
                *("DFT", inputs, attributes),
                constants=frozenset([1]),
                torch=fourier(-2),
            )
        )
