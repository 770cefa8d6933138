"""Gradients of look-ups, against differences and torch."""

from __future__ import annotations

import pytest
import torch
from gradients.harness import GradientCase, check, integers, normal


def take(axis: int):
    def run(data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        rows = data.shape[axis]
        places = torch.where(indices < 0, indices + rows, indices)
        found = data.index_select(axis, places.reshape(-1))
        return (
            found.unflatten(axis, places.shape) if places.dim() else found.squeeze(axis)
        )

    return run


CASES = [
    GradientCase("Gather", [normal(5, 3), integers([1, 4, 1, -1])], torch=take(0)),
    GradientCase(
        *("Gather", [normal(5, 3), integers([[1, 4], [0, 0]])]), torch=take(0)
    ),
    GradientCase(
        *("Gather", [normal(2, 4, 3), integers([[1, -2], [0, 1]])]),
        {"axis": 1},
        torch=take(1),
    ),
    GradientCase(
        *("Gather", [normal(2, 4, 3), integers([2, 2])]), {"axis": -1}, torch=take(2)
    ),
    GradientCase(
        *("Gather", [normal(2, 4, 3), integers(1)]),
        {"axis": 1},
        frozenset([1]),
        torch=take(1),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: GradientCase):
    check(case)
