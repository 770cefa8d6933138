"""The gradient rule of dropout: the mask of the forward, drawn again or taken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gradients.harness import GradientCase, check, integers, normal
from xdsl.dialects.builtin import TensorType, i1
from xdsl.ir import Operation, SSAValue

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.dropout import DropoutOp
from distir.runtime.layers import dropout as torch_dropout


def _make(operands: Sequence[SSAValue]) -> Operation:
    return DropoutOp(*operands, ratio=0.25, seed=3, stream=2)


def _make_with_mask(operands: Sequence[SSAValue]) -> Operation:
    mask = TensorType(i1, shape_of(operands[0].type))
    return DropoutOp(*operands, ratio=0.25, seed=3, stream=2, mask=mask)


def _torch(x: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    mask = torch_dropout.dropout(
        torch.ones(x.shape, dtype=x.dtype),
        counter,
        key=(3, 2),
        threshold=2**30,
        scale=1 / 0.75,
    )
    return x * mask


def _torch_with_mask(
    x: torch.Tensor, counter: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y = _torch(x, counter)
    return y, y != 0


CASES = [
    GradientCase("train.dropout", [x, integers(9)], make=make, torch=function)
    for x in (normal(4, 6), normal(2, 3, 4))
    for make, function in ((_make, _torch), (_make_with_mask, _torch_with_mask))
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: GradientCase):
    check(case)
