"""Paddings of sequences that cannot be, which a test runs on a rank."""

from __future__ import annotations

from typing import Any

import torch

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize
from support.texts import Language


def refused() -> dict[str, str]:
    """Returns errors of paddings that cannot be, by what they are."""
    example = torch.zeros(4, 8, dtype=torch.int64)

    def told(length: int = 8, model: Any = None, **options: Any) -> str:
        try:
            made = parallelize(
                model or Language(1), (example,), loss="cross_entropy", **options
            )
            made.train()
            words = torch.ones(4, length, dtype=torch.int64)
            made(words, words)
        except DistIRError as error:
            return str(error)
        return "no error"

    return {
        "order": told(pad_to=(16, 8)),
        "none": told(pad_to=0),
        "alone": told(pad_with={"labels": 0}),
        "name": told(pad_to={"word": 8}),
        "long": told(11, pad_to=(8, 10)),
        "labels": told(7, pad_to=8, pad_with={"labels": 0}),
        "right": told(7, pad_to={"words": 8, "labels": 8}),
        "sees": told(7, Backwards(), pad_to=8),
    }


class Backwards(Language):
    """A model in which words see those behind them."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(words.flip(1)).flip(1)
