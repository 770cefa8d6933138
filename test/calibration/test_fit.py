"""Figures fitted to samples: what explains them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest

from distir.calibration.fit import (
    LinkFit,
    Sample,
    fit_communication,
    fit_op,
)
from distir.errors import DistIRError
from distir.interpreters.simulator.profiles.measured import OpFigures
from distir.launch.timing import typical

SIZES = [2.0**n for n in range(12, 25, 2)]


def samples_of(figures: OpFigures, flops_per_byte: float = 0.0) -> list[Sample]:
    found: list[Sample] = []
    for i, size in enumerate(SIZES):
        flops = size * flops_per_byte * (1 + i % 3)
        seconds = figures.seconds(flops, size)
        found.append(Sample(flops, size, seconds, seconds))
    return found


@pytest.mark.parametrize(
    "figures",
    [
        OpFigures(2e-6),
        OpFigures(2e-6, per_byte=1e-10),
        OpFigures(2e-6, per_byte=3e-11, beyond_cache=5e-11, cache=2.0**20),
        OpFigures(1e-6, per_flop=7e-12, per_byte=4e-11),
    ],
    ids=["overhead", "bandwidth", "cache", "product"],
)
def test_exact_samples_give_their_figures(figures: OpFigures) -> None:
    fit = fit_op("op", samples_of(figures, 50.0 if figures.per_flop else 0.0))
    for name in ("overhead", "per_flop", "per_byte", "beyond_cache"):
        assert getattr(fit.figures, name) == pytest.approx(
            getattr(figures, name), rel=1e-6, abs=1e-15
        )
    assert fit.residual.largest < 1e-6


def test_figures_are_never_negative() -> None:
    """An op that seems to get faster with size has an overhead and nothing else."""
    samples = [Sample(0.0, s, 1e-3 - s * 1e-11, 1e-3) for s in SIZES]
    figures = fit_op("op", samples).figures
    assert figures.overhead > 0
    assert min(figures.per_byte, figures.per_flop, figures.beyond_cache) >= 0


def test_errors_are_relative_to_all_that_was_measured() -> None:
    """What a probe does besides its op makes errors in the op smaller, not larger."""
    samples = [Sample(0.0, s, took, 1e-3) for s, took in zip(SIZES, [1e-6, 9e-6] * 4)]  # noqa: B905
    assert fit_op("op", samples).residual.largest < 0.01


def test_communication() -> None:
    def fit(seconds: Callable[[float], float], besides: float = 0.0) -> LinkFit:
        """Fits to seconds by bytes; computations `besides` were subtracted."""
        pairs = [(size, seconds(size)) for size in SIZES]
        samples = [Sample(0.0, s, took, took + besides) for s, took in pairs]
        return fit_communication("all_reduce", samples)

    for besides in (0.0, 2e-3):
        found = fit(lambda s: 2e-4 + s * 1e-9, besides)
        assert found.overhead == pytest.approx(2e-4)
        assert found.per_byte == pytest.approx(1e-9)
        assert found.residual.largest < 1e-6
    # The same errors weigh less if more was measured besides.
    noisy = [fit(lambda s: 2e-4 + s * 1e-9 + s % 3 * 5e-5, b) for b in (0.0, 2e-3)]
    assert noisy[1].residual.mean < noisy[0].residual.mean / 2
    # Without a bandwidth it is no link.
    assert fit(lambda s: 2e-4).residual.mean == inf


def test_too_few_measurements() -> None:
    with pytest.raises(DistIRError, match=r"op was measured 2 times, too few"):
        fit_op("op", samples_of(OpFigures(1e-6))[:2])


def test_noise_shows_in_the_residual() -> None:
    rng = np.random.default_rng(0)
    exact = samples_of(OpFigures(1e-4, per_byte=1e-10))
    noisy = [
        Sample(s.flops, s.moved, t, t)
        for s in exact
        for t in [s.seconds * float(rng.uniform(0.3, 3.0))]
    ]
    assert fit_op("op", noisy).residual.mean > 0.25


def test_typical_is_the_least_median() -> None:
    """A disturbed round counts for nothing, a single fast sample neither."""
    assert typical([[3.0, 1.0, 3.5], [9.0, 9.0, 2.0], [4.0, 4.0, 4.0]]) == 3.0
