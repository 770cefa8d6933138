"""EmbeddingBag is imported as lookups and sums, of bags of one length or of any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import distir
from distir.errors import DistIRError
from distir.interpreters.reference import run_program


class _Bags(nn.Module):
    """One table; weights of words and beginnings of bags may be given."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(10, 4, **options)

    def forward(
        self,
        words: Tensor,
        offsets: Tensor | None = None,
        scales: Tensor | None = None,
    ) -> Tensor:
        return self.bags(words, offsets, scales)


TABLE = torch.tensor([[1, 2, 0], [0, 0, 3], [7, 0, 7]])
WORDS = torch.tensor([1, 2, 0, 4, 0, 7, 7])
OFFSETS = torch.tensor([0, 2, 2, 5])
"""The second bag is empty."""

CASES: dict[str, tuple[dict[str, Any], tuple[Tensor | None, ...]]] = {
    "sums of rows": (dict(mode="sum"), (TABLE,)),
    "means of rows": (dict(mode="mean"), (TABLE,)),
    "maxima of rows": (dict(mode="max"), (TABLE,)),
    "rows without padding": (dict(mode="mean", padding_idx=0), (TABLE,)),
    "weighted rows": (dict(mode="sum"), (TABLE, None, torch.rand(3, 3))),
    "sums of bags": (dict(mode="sum"), (WORDS, OFFSETS)),
    "means of bags": (dict(mode="mean"), (WORDS, OFFSETS)),
    "bags without padding": (dict(mode="sum", padding_idx=0), (WORDS, OFFSETS)),
    "means without padding": (dict(mode="mean", padding_idx=0), (WORDS, OFFSETS)),
    "weighted bags": (dict(mode="sum"), (WORDS, OFFSETS, torch.rand(7))),
    "a last offset": (
        dict(mode="sum", include_last_offset=True),
        (WORDS, torch.tensor([0, 2, 2, 7])),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_pytorch_computes(case: str) -> None:
    options, args = CASES[case]
    torch.manual_seed(0)
    module = _Bags(**options)
    given = [a for a in args if a is not None]
    program = distir.import_model(module, args)
    values = [a.numpy() for a in given]
    values += [program.weights["bags.weight"]]
    (found,) = run_program(program.module, values)
    with torch.no_grad():
        np.testing.assert_allclose(found, module(*args).numpy(), rtol=1e-6, atol=1e-6)


def test_its_batch_and_its_columns_are_split() -> None:
    module = _Bags(mode="mean")
    words = torch.arange(8).reshape(4, 2)
    program = distir.import_model(module, (words,), training=True, loss="mse")
    plan = distir.distribute(
        program, cluster="cpu", d=2, t=2, shard=["bags.weight:1=t"]
    )
    assert distir.check(program, plan)


def test_what_has_no_such_form_is_refused() -> None:
    module = _Bags(mode="max")
    with pytest.raises(DistIRError, match="control flow"):
        distir.import_model(module, (WORDS, OFFSETS))
