"""The gradient rule of the scan of selective state spaces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gradients.harness import GradientCase, check, normal, uniform
from xdsl.ir import Operation, SSAValue

from distir.dialects.train_ops.selective_scan import SelectiveScanOp


def _scan(operands: Sequence[SSAValue]) -> Operation:
    return SelectiveScanOp(*operands, y=operands[0].type)


def _torch_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
) -> torch.Tensor:
    state = torch.zeros(*x.shape[:2], a.shape[1], dtype=x.dtype)
    found: list[torch.Tensor] = []
    for t in range(x.shape[2]):
        step = dt[:, :, t, None]
        added = step * x[:, :, t, None] * b[:, None, :, t]
        state = (step * a).exp() * state + added
        found.append((state * c[:, None, :, t]).sum(2))
    return torch.stack(found, 2)


CASES = [
    GradientCase(
        "train.selective_scan",
        [
            normal(4, 6, 3),
            uniform(4, 6, 3),
            -uniform(6, 2),
            normal(4, 2, 3, seed=1),
            normal(4, 2, 3, seed=2),
        ],
        make=_scan,
        torch=_torch_scan,
    )
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: GradientCase) -> None:
    check(case)
