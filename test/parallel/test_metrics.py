"""The numbers of `metrics()` next to those of PyTorch for the whole batch."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from support.parallel_metrics import batches, metrics_of_steps, module
from support.ranks import run_ranks
from support.thoroughness import sampled

PLANS: list[dict[str, Any]] = [dict(d=2, zero=3), dict(d=2), dict(t=2), dict(p=2)]


@pytest.mark.parametrize("options", sampled(PLANS, 4), ids=str)
def test_metrics_are_those_of_the_whole_batch(options: dict[str, Any]) -> None:
    plain = module()
    x, y, x_after, y_after = batches()
    loss = torch.nn.functional.mse_loss(plain(x), y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    after = torch.nn.functional.mse_loss(plain(x_after), y_after)
    trained = {"loss": loss.item(), "grad_norm": norm.item()}
    size = prod(options.get(axis, 1) for axis in "dtp")
    for first, second, third in run_ranks(size, metrics_of_steps, options):
        assert first == {}
        assert second == pytest.approx(trained, rel=1e-5)
        assert third == pytest.approx(
            trained | {"validation_loss": after.item()}, rel=1e-5
        )
