"""Mixtures of experts that a user wrote, where sizes depend on what the router chooses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distir.errors import DistIRError
from distir.frontends.torch.importer import import_torch
from distir.passes.differentiate import DifferentiatePass
from distir.tools.files import apply_passes

WHAT_TO_WRITE = "a one-hot of the router's choice"


class Experts(nn.Module):
    def __init__(self, loop: str):
        super().__init__()
        self.loop = loop
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        if self.loop == "dense":
            weigh = (nn.functional.one_hot(chosen, 4) * weights[..., None]).sum(1)
            for i, expert in enumerate(self.experts):
                out = out + weigh[:, i, None] * expert(x)
            return out
        numbers = chosen.unique() if self.loop == "chosen" else range(4)
        for i in numbers:
            number = int(i)
            rows, place = torch.where(chosen == number)
            if self.loop == "skip" and rows.numel() == 0:
                continue
            done = self.experts[number](x[rows]) * weights[rows, place, None]
            out = out.index_add(0, rows, done)
        return out


def training_step(loop: str) -> None:
    torch.manual_seed(0)
    imported = import_torch(Experts(loop).eval(), (torch.randn(6, 8),))
    step = DifferentiatePass(loss="mse", optimizer="sgd")
    apply_passes(imported.module, step)


@pytest.mark.parametrize(
    ("loop", "line"),
    [("chosen", r"number = int\(i\)"), ("skip", r"rows\.numel\(\) == 0")],
)
def test_a_loop_over_chosen_experts_names_its_line(loop: str, line: str) -> None:
    with pytest.raises(DistIRError, match=line) as told:
        training_step(loop)
    assert WHAT_TO_WRITE in str(told.value)


def test_selected_tokens_cannot_be_trained() -> None:
    with pytest.raises(DistIRError, match=r"NonZero") as told:
        training_step("all")
    assert WHAT_TO_WRITE in str(told.value)


def test_the_dense_form_that_errors_recommend_can_be_trained() -> None:
    training_step("dense")
