"""What `parallelize` checks against the module."""

from __future__ import annotations

import pytest
import torch
from support.parallel_trust import errors_of_steps
from support.ranks import run_ranks
from torch import nn

import distir
from distir.errors import DistIRError


@pytest.mark.parametrize("options", [dict(d=2, zero=3), dict(p=2)], ids=str)
def test_the_first_step_is_compared(options: dict[str, int]) -> None:
    for said in run_ranks(2, errors_of_steps, options):
        assert "or sizes that depend on them, in Python, at " in said["refused"]
        assert "self.a(y) if x.sum() > 0" in said["refused"]
        assert said["same way"] == said["same way again"] == ""
        assert "the loss of the first step of Branch differs" in said["other way"]
        assert said["other way again"] == ""


def test_options() -> None:
    module, x = nn.Linear(4, 4), torch.randn(2, 4)
    with pytest.raises(
        DistIRError, match="no check 'always'; choose one of import, off"
    ):
        distir.parallelize(module, (x,), loss="mse", check="always")
    with pytest.raises(
        DistIRError, match=r"'randomness'.* among control-flow, python-"
    ):
        distir.parallelize(module, (x,), loss="mse", allow=("randomness",))
    with pytest.raises(DistIRError, match="which dtype changes"):
        distir.parallelize(module, (x,), loss="mse", check="step", dtype="bf16")
