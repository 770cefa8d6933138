"""Compares two rankings of the same items, each given as a series of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """
    Returns Spearman's rank correlation of two series of numbers. Equal numbers share
    the mean of their ranks. The result is 1 if both series have the same ranking. It is
    nan for fewer than two numbers, or if all numbers of a series are equal.
    """
    mine, others = (_ranks(np.asarray(values)) for values in (first, second))
    if len(set(mine)) < 2 or len(set(others)) < 2:
        return float("nan")
    return float(np.corrcoef(mine, others)[0, 1])


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.array([(values < v).sum() + (values == v).sum() / 2 for v in values])
