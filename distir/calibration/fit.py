"""
Fits the figures of ops and links (overheads, and times per FLOP and per byte) to
measurements, and reports how far the fitted figures are from the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf

import numpy as np
import numpy.typing as npt

from distir.errors import DistIRError
from distir.interpreters.simulator.profiles.measured import OpFigures

CACHES = (0.0, 2.0**17, 2.0**18, 2.0**19, 2.0**20, 2.0**21, 2.0**22)
"""
The cache sizes in bytes that the fit tries. An op may be slower on more bytes than fit
into the cache. 0 means no cache.
"""

SHORTEST = 1e-5
"""
The least number of seconds that relative errors are divided by: for shorter
measurements, an error of a few microseconds does not matter.
"""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """
    One measurement of an op or of a communication.

    An op computes `flops`, moves `moved` bytes and takes `seconds` of the measured
    `total`, which may include other ops of the same program. For communication, `moved`
    is the size of the buffer in bytes.
    """

    flops: float
    moved: float
    seconds: float
    total: float


@dataclass(frozen=True)
class Residual:
    """
    The difference between fitted figures and measurements: the `mean` and the `largest`
    relative error over a number of `samples`. Errors are relative to the measured
    seconds, or to `SHORTEST` seconds if that is longer.
    """

    name: str
    samples: int
    mean: float
    largest: float

    def __str__(self) -> str:
        return (
            f"{self.samples} measurements, mean error {self.mean:.1%}, largest "
            f"{self.largest:.1%}"
        )


@dataclass(frozen=True)
class OpFit:
    """
    The figures of an op, with the samples to which the figures were fitted and the
    error that remains.
    """

    figures: OpFigures
    samples: Sequence[Sample]
    residual: Residual


def fit_op(name: str, samples: Sequence[Sample]) -> OpFit:
    """
    Returns the figures of an op: its overhead, its time per FLOP and its time per byte.
    The figures are fitted to `samples` by least squares of relative errors, and no
    figure is negative. Raises DistIRError if there are fewer than three samples.
    """
    _check_count(name, samples)
    seconds = np.array([s.seconds for s in samples])
    flops, moved = (
        np.array([getattr(s, f) for s in samples]) for f in ("flops", "moved")
    )
    totals = np.array([s.total for s in samples])
    best: tuple[float, OpFigures, Array] | None = None
    for cache in CACHES:
        if cache and min((moved <= cache).sum(), (moved > 1.5 * cache).sum()) < 2:
            continue  # one sample alone would say how fast or how slow
        columns = [np.ones_like(seconds), flops, moved]
        if cache:
            columns.append(np.maximum(0.0, moved - cache))
        found, error = _least_squares(np.stack(columns, 1), seconds, totals)
        # A cache is assumed only if it reduces the error by a tenth.
        if best is None or error < 0.9 * best[0] - 1e-12:
            beyond = found[3] if cache else 0.0
            overhead, per_flop, per_byte = (float(x) for x in found[:3])
            at = cache if beyond else 0.0
            figures = OpFigures(overhead, per_flop, per_byte, float(beyond), at)
            best = error, figures, found
    assert best is not None
    figures = best[1]
    pairs = [
        (s.total - s.seconds + figures.seconds(s.flops, s.moved), s.total)
        for s in samples
    ]
    return OpFit(figures, samples, residual(name, pairs))


@dataclass(frozen=True)
class LinkFit:
    """
    The time of one kind of communication: `overhead` seconds, plus `per_byte` seconds
    for each byte of the buffer.
    """

    overhead: float
    per_byte: float
    residual: Residual


def fit_communication(kind: str, samples: Sequence[Sample]) -> LinkFit:
    """
    Returns the figures of one kind of communication, fitted to `samples` by least
    squares. Errors are relative to the total measured time. If larger buffers did not
    take longer, no bandwidth can be derived, and the residual is infinite. Raises
    DistIRError if there are fewer than three samples.
    """
    _check_count(kind, samples)
    size, seconds, totals = np.array([(s.moved, s.seconds, s.total) for s in samples]).T
    columns = np.stack([np.ones_like(size), size], 1)
    (overhead, per_byte), _ = _least_squares(columns, seconds, totals)
    pairs = [
        (s.total - s.seconds + overhead + s.moved * per_byte, s.total) for s in samples
    ]
    found = residual(kind, pairs)
    if per_byte <= 0:
        # No link has infinite bandwidth, so the measurements have to be repeated.
        found = replace(found, mean=inf, largest=inf)
    return LinkFit(float(overhead), float(per_byte), found)


def residual(name: str, pairs: Sequence[tuple[float, float]]) -> Residual:
    """
    Returns the residual called `name` of `pairs`, each the predicted and the measured
    seconds of one sample.
    """
    errors = [abs(p - took) / max(took, SHORTEST) for p, took in pairs]
    return Residual(name, len(errors), float(np.mean(errors)), max(errors))


def _check_count(name: str, samples: Sequence[object]) -> None:
    if len(samples) < 3:
        raise DistIRError(
            f"{name} was measured {len(samples)} times, too few to fit figures to; "
            f"measure at least 3 sizes"
        )


def _least_squares(
    columns: Array, seconds: Array, totals: Array
) -> tuple[Array, float]:
    """
    Returns the non-negative coefficients of `columns` that minimise the sum of squared
    errors against `seconds`, relative to `totals`, and the minimal sum. Every subset of
    the few columns is tried: the best subset with positive coefficients is the optimum.
    """
    weighted, target = columns / totals[:, None], seconds / totals
    best, least = np.zeros(columns.shape[1]), float(target @ target)
    useful = [i for i in range(columns.shape[1]) if columns[:, i].any()]
    for count in range(1, len(useful) + 1):
        for chosen in combinations(useful, count):
            scale = np.abs(weighted[:, chosen]).max(0)
            found = np.linalg.lstsq(weighted[:, chosen] / scale, target, rcond=None)[0]
            if (found < 0).any():
                continue
            error = weighted[:, chosen] / scale @ found - target
            if error @ error < least:
                best, least = np.zeros(columns.shape[1]), float(error @ error)
                best[list(chosen)] = found / scale
    return best, least
