"""The gradient rules of mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gradients.harness import GradientCase, check, normal
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.experts import (
    CombineOp,
    DispatchOp,
    GroupedProductOp,
)
from distir.runtime.layers.experts import expert_places

GROUPS, TOKENS, EXPERTS, SHARDS, PLACES = 2, 3, 4, 2, 4
_ids = torch.tensor([[[0, 3], [0, 1], [0, 2]], [[3, 1], [1, 0], [2, 3]]])
SLOTS, ROWS = expert_places(_ids, EXPERTS, 2, SHARDS, PLACES)
"""Where the choices of two groups go: an expert takes two of each, so that one is dropped."""


def _tensor(like: SSAValue, *sizes: int) -> TensorType:
    return TensorType(element_type(like), sizes)


def _dispatch(operands: Sequence[SSAValue]) -> Operation:
    x, _, rows = operands
    result = _tensor(x, *shape_of(rows), shape_of(x)[2])
    return DispatchOp(*operands, result=result)


def _combine(operands: Sequence[SSAValue]) -> Operation:
    x = operands[0]
    result = _tensor(x, GROUPS, TOKENS, shape_of(x)[3])
    return CombineOp(*operands, result=result)


def _product(operands: Sequence[SSAValue]) -> Operation:
    x, _, matrices = operands
    result = _tensor(x, *shape_of(x)[:3], shape_of(matrices)[2])
    return GroupedProductOp(*operands, result=result, taken=5)


def _transposed(operands: Sequence[SSAValue]) -> Operation:
    x, _, matrices = operands
    result = _tensor(x, *shape_of(x)[:3], shape_of(matrices)[1])
    return GroupedProductOp(*operands, result=result, transposed=True)


def _choices() -> list[tuple[int, ...]]:
    """The group, token, choice, shard and place of every choice that has a row."""
    taken = (SLOTS >= 0).nonzero().tolist()
    slots = [int(SLOTS[tuple(at)]) for at in taken]
    return [(*at, s // PLACES, s % PLACES) for at, s in zip(taken, slots, strict=True)]


def _torch_dispatch(
    x: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    out = x.new_zeros(*rows.shape, x.shape[2])
    for group, token, _, shard, place in _choices():
        out[shard, group, place] = x[group, token]
    return out


def _torch_combine(
    x: torch.Tensor,
    slots: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    out = x.new_zeros(GROUPS, TOKENS, x.shape[3])
    for group, token, choice, shard, place in _choices():
        row = x[shard, group, place]
        if weights is not None:
            row = row * weights[group, token, choice]
        out[group, token] = out[group, token] + row
    return out


def _torch_product(
    x: torch.Tensor, rows: torch.Tensor, matrices: torch.Tensor
) -> torch.Tensor:
    out = x.new_zeros(*x.shape[:3], matrices.shape[2])
    for shard, group, place in (rows >= 0).nonzero().tolist():
        expert = shard * (EXPERTS // SHARDS) + int(rows[shard, group, place])
        out[shard, group, place] = x[shard, group, place] @ matrices[expert]
    return out


def _torch_transposed(
    x: torch.Tensor, rows: torch.Tensor, matrices: torch.Tensor
) -> torch.Tensor:
    return _torch_product(x, rows, matrices.transpose(1, 2))


_slots, _rows = SLOTS.numpy(), ROWS.numpy()
_inside, _outside = (SHARDS, GROUPS, PLACES, 6), (GROUPS, TOKENS, 6)

CASES = [
    GradientCase(
        "train.dispatch",
        [normal(*_outside), _slots, _rows],
        make=_dispatch,
        torch=_torch_dispatch,
    ),
    GradientCase(
        "train.combine",
        [normal(*_inside), _slots, _rows],
        make=_combine,
        torch=_torch_combine,
    ),
    GradientCase(
        "train.combine",
        [normal(*_inside), _slots, _rows, normal(GROUPS, TOKENS, 2)],
        make=_combine,
        torch=_torch_combine,
        label="weights",
    ),
    GradientCase(
        "train.grouped_product",
        [normal(*_inside), _rows, normal(EXPERTS, 6, 4)],
        make=_product,
        torch=_torch_product,
    ),
    GradientCase(
        "train.grouped_product",
        [normal(*_inside), _rows, normal(EXPERTS, 4, 6)],
        make=_transposed,
        torch=_torch_transposed,
        label="transposed",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: GradientCase) -> None:
    check(case)


def test_places() -> None:
    """The third choice of expert 0 in group 0 is dropped; others follow each other by expert."""
    assert SLOTS[0].tolist() == [[0, 5], [1, 2], [-1, 4]]
    assert ROWS[:, 0].tolist() == [[0, 0, 1, -1], [0, 1, -1, -1]]
