"""Losses of many rows of logits are computed some rows at a time, to the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from distir.runtime.layers import losses

ROWS, CLASSES = 12, 10
LABELS = torch.arange(ROWS).reshape(3, 4) % CLASSES
LOSS = torch.tensor(0.5)
OF_ROWS = torch.linspace(1, 2, ROWS).reshape(3, 4)

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "loss": lambda x: losses.cross_entropy(x, LABELS, 0.5, 3, torch.float32),
    "gradient": lambda x: losses.cross_entropy_grad(LOSS, x, LABELS, 0.5, 3),
    "exponentials": lambda x: losses.exponential_sum(x, OF_ROWS),
    "part of a gradient": lambda x: losses.cross_entropy_part_grad(
        *(LOSS, x, LABELS - 4, OF_ROWS, OF_ROWS, 0.5, 3)
    ),
}


class LargestInFloat32(TorchDispatchMode):
    """The elements of the largest f32 tensor that an operator makes."""

    size = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
                self.size = max(self.size, value.numel())
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_as_at_once(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16-bit logits are in f32 two rows at a time, never all of them."""
    logits = torch.randn(3, 4, CLASSES, generator=torch.Generator().manual_seed(1))
    logits = logits.to(dtype)
    expected = FUNCTIONS[name](logits)
    monkeypatch.setattr(losses, "CHUNK", 2 * CLASSES + 3)
    with LargestInFloat32() as largest:
        found = FUNCTIONS[name](logits)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    if dtype == torch.bfloat16:
        assert largest.size == 2 * CLASSES
