"""Gradients of losses, against differences and torch."""

from __future__ import annotations

import pytest
import torch
from gradients.harness import GradientCase, check, integers, normal
from torch.nn import functional as F

from distir.dialects.train_ops.losses import CrossEntropyOp


def _case(
    divisor: int | None, ignore_index: int | None, labels: list[int]
) -> GradientCase:
    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        ignored = -100 if ignore_index is None else ignore_index
        total = F.cross_entropy(logits, target, ignore_index=ignored, reduction="sum")
        return total / (divisor or 1)

    return GradientCase(
        "train.cross_entropy",
        [normal(4, 5), integers(labels)],
        label=f"divisor={divisor},ignore_index={ignore_index}",
        torch=loss,
        make=lambda operands: CrossEntropyOp(*operands, divisor, ignore_index),
    )


CASES = [
    _case(None, None, [0, 4, 2, 2]),
    _case(4, None, [0, 4, 2, 2]),
    _case(4, 2, [0, 4, 2, 2]),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: GradientCase):
    check(case)
