"""
The optimizers of `torch.optim` update parameters of which each rank has a part as they update
whole ones, or are refused by name.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from support.optimizer_runs import (
    LR,
    REFUSED,
    STEPS,
    WORKING,
    differences,
    fused_runs,
    refusals,
)
from support.ranks import run_ranks
from support.thoroughness import chosen

PLANS: list[dict[str, Any]] = [dict(t=2), dict(d=2, zero=3)]


def test_all_optimizers_are_known() -> None:
    """Each optimizer of PyTorch either works or is refused."""
    names = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    assert names - {"Optimizer"} == WORKING.keys() | REFUSED.keys()


HALVES = [list(WORKING)[n::2] for n in range(2)]


@pytest.mark.parametrize(
    ("options", "names"),
    chosen(product(PLANS, HALVES), list(zip(PLANS, HALVES, strict=True))),
    ids=str,
)
def test_optimizers_of_parts(options: dict[str, Any], names: list[str]) -> None:
    for rank in run_ranks(2, differences, options, names):
        assert len(rank) == sum(len(WORKING[name]) for name in names)
        for name, difference in rank.items():
            # Muon makes matrices orthogonal in bf16, whose sums are rounded in another order.
            limit = 0.05 * LR * STEPS if name.startswith("Muon") else 1e-10
            assert difference < limit, name


def test_fused_optimizers_update_local_parts() -> None:
    """But for gradients of another layout, and DTensors of others, which DTensor updates."""
    for rank in run_ranks(2, fused_runs, dict(d=2, zero=3)):
        paths = {kind: set(paths) for kind, (paths, _) in rank.items()}
        assert paths == {"own": {True}, "whole gradients": {False}, "others": {False}}
        assert all(difference < 1e-10 for _, difference in rank.values())


@pytest.mark.parametrize("options", [dict(t=2), dict(p=2, k=2)], ids=str)
def test_optimizers_that_are_refused(options: dict[str, Any]) -> None:
    """When they are made; the message names the optimizer and another one."""
    for rank in run_ranks(2, refusals, options):
        assert rank
        for name, (message, changed) in rank.items():
            module = "" if "Stranger" in name else "torch.optim."
            assert f"{module}{name.split()[0]} " in message
            assert "; take " in message
            assert changed == 0
