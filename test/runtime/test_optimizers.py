"""Updates of many parameters by one kernel, and how much they cast at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from distir.runtime.loop import optimizers

SHAPES = [(3, 4), (8,), (2, 2), (5, 5)]


def adamw(dtype: torch.dtype) -> list[torch.Tensor]:
    """The parameters and moments after a step, whose gradients are of that type."""
    draw = torch.Generator().manual_seed(0)
    parameters, gradients, means, squares = (
        [torch.rand(shape, generator=draw) for shape in SHAPES] for _ in range(4)
    )
    return optimizers.adamw(
        parameters,
        [g.to(dtype) for g in gradients],
        means,
        squares,
        torch.tensor(3),
        learning_rate=0.1,
        epsilon=1e-8,
        beta1=0.9,
        beta2=0.99,
        weight_decay=0.1,
    )


def sgd(dtype: torch.dtype) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    parameters, gradients, buffers = (
        [torch.rand(shape, generator=draw) for shape in SHAPES] for _ in range(3)
    )
    return optimizers.sgd(
        parameters,
        [g.to(dtype) for g in gradients],
        buffers,
        learning_rate=0.1,
        weight_decay=0.1,
        momentum=0.9,
    )


@pytest.mark.parametrize("update", [adamw, sgd])
def test_gradients_are_cast_for_a_few_parameters_at_a_time(
    update: Callable[[torch.dtype], list[torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cast: list[int] = []
    alike: Any = vars(optimizers)["alike"]

    def counted(gradients: Any, parameters: Any) -> Any:
        cast.append(len(gradients))
        return alike(gradients, parameters)

    monkeypatch.setattr(optimizers, "alike", counted)
    at_once = update(torch.bfloat16)
    monkeypatch.setattr(optimizers, "_CAST_BYTES", 80)
    in_parts = update(torch.bfloat16)
    update(torch.float32)
    # 12 and 8 elements of 4 bytes, then 4; the last alone is more than the limit.
    assert cast == [4, 2, 1, 1, 4]
    for whole, part in zip(at_once, in_parts, strict=True):
        assert torch.equal(whole, part)
