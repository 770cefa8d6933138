"""How alike two series of numbers rank what they are of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """
    Spearman's correlation of two series of numbers: that of their ranks, where equal numbers
    share the mean of theirs. It is 1 if they rank alike, and nan for fewer than two numbers
    or for equal ones.
    """
    ranks = [_ranks(np.asarray(values)) for values in (first, second)]
    if any(len(set(own)) < 2 for own in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.array([(values < v).sum() + (values == v).sum() / 2 for v in values])
