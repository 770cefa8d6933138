"""Gradients of losses, against differences and torch."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from gradients.harness import GradientCase, check, integers, normal
from support.sharding_harness import Array
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
        make=lambda operands: CrossEntropyOp(
            *operands, divisor=divisor, ignore_index=ignore_index
        ),
    )


CASES = [
    _case(None, None, [0, 4, 2, 2]),
    _case(4, None, [0, 4, 2, 2]),
    _case(4, 2, [0, 4, 2, 2]),
]


def _labels(*shape: int) -> Array:
    return np.random.default_rng(5).integers(0, 5, shape)


for _name, _function in (
    ("SoftmaxCrossEntropyLoss", F.cross_entropy),
    ("NegativeLogLikelihoodLoss", F.nll_loss),
):
    for _reduction in ("mean", "sum", "none"):
        for _shape in ((4, 5), (2, 5, 3)):
            for _ignored in (None, 2):
                _how = {"reduction": _reduction}
                _how |= {} if _ignored is None else {"ignore_index": _ignored}
                CASES.append(
                    GradientCase(
                        _name,
                        [normal(*_shape), _labels(_shape[0], *_shape[2:])],
                        _how,
                        label=f"{_shape}{_how}".replace(" ", ""),
                        torch=partial(_function, **_how),
                    )
                )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: GradientCase):
    check(case)
