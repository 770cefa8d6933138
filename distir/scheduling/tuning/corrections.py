"""Predictions that are corrected by measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import erf, exp, pi, sqrt

import numpy as np
import numpy.typing as npt

from distir.scheduling.knobs import KnobChoice

OVERALL = 1.0
"""By how much (of its logarithm) a prediction may be wrong for all points alike."""

OF_A_VALUE = 0.05
"""By how much it may be wrong for a value of a knob, beyond that."""

OF_A_DIVISION = 0.3
"""By how much it may be wrong for a way to divide a program among devices, beyond that."""

NOISE = 0.02
"""By how much a measurement differs from another, or from what the factors say."""

DEVIATIONS = 1.5
"""How many standard deviations above what is expected an optimist goes."""

LEAST_CAPACITY = 1 / 3
"""
What part of a device predictions fill at least before it is full: what they do not know
(fragments, workspaces, libraries) takes at most twice as much.
"""

MEMORY_NOISE = 0.02
"""By how much predictions of memory differ from each other's scale."""

IMPROBABLE = 0.02
"""What fits with no more than that probability is not tried."""

_CAPACITIES = 1000


@dataclass(frozen=True)
class Candidate:
    """
    A point that may be measured: its values by the names of coordinates, and what is
    predicted: samples per second and bytes on the fullest device. `division`: of a plan what
    says how the program is divided, by names too, about which predictions may be more wrong.
    """

    values: Mapping[str, KnobChoice]
    throughput: float
    memory: float
    division: Mapping[str, KnobChoice] = field(default_factory=dict[str, KnobChoice])


class Corrections:
    """
    Says which of several candidates to measure next, and when none is worth it any more.

    Throughput is what was predicted, times a factor for all candidates, times a factor for
    each value of each coordinate. The factors are fitted to the measurements so far, by
    least squares of logarithms with weights for how far from 1 they may be expected: that
    is the mean of a normal distribution, whose standard deviation is known too.

    Of memory there is one capacity, in bytes as they are predicted, up to `memory`, the
    device's: devices also hold what no prediction knows. What fitted and what did not says
    how probable each capacity is.
    """

    def __init__(self, candidates: Sequence[Candidate], memory: float):
        self.candidates = candidates
        self.measured: dict[int, float | None] = {}
        self._predicted = np.array([candidate.throughput for candidate in candidates])
        self._rows, self._prior = _factors(candidates)
        needed = np.array([max(c.memory, 1.0) for c in candidates])
        capacities = np.linspace(LEAST_CAPACITY * memory, memory, _CAPACITIES)
        away = (capacities - needed[:, None]) / (MEMORY_NOISE * needed[:, None])
        self._fits = np.array([[_below(x) for x in row] for row in away])
        """For each candidate and capacity, how probable it is that it fits."""
        self._capacity = np.full(_CAPACITIES, 1 / _CAPACITIES)
        """How probable each capacity is."""

    @property
    def best(self) -> int | None:
        """The candidate that was measured best, if one was measured and fits."""
        ran = {i: value for i, value in self.measured.items() if value is not None}
        return max(ran, key=lambda i: ran[i]) if ran else None

    def add(self, candidate: int, throughput: float | None) -> None:
        """Learns what a candidate was measured to reach; None if it ran out of memory."""
        self.measured[candidate] = throughput
        fits = self._fits[candidate]
        self._capacity = self._capacity * (fits if throughput is not None else 1 - fits)
        # Nothing is so improbable that measurements cannot teach otherwise.
        self._capacity += 1e-12
        self._capacity /= self._capacity.sum()

    def next(self) -> int | None:
        """
        The candidate to measure next: the one by which the best throughput is expected to
        grow most, where it may not fit. None if of those that may fit even an optimist expects
        none to beat the best.
        """
        expected, spread = self._corrected()
        best = self.best
        reached = 0.0 if best is None else self.measured[best]
        assert reached is not None
        fits = self._fits @ self._capacity
        left = [
            i
            for i in range(len(self.candidates))
            if i not in self.measured
            and fits[i] > IMPROBABLE
            and expected[i] + DEVIATIONS * spread[i] > reached
        ]

        def gain(i: int) -> float:
            if best is None:
                return fits[i] * expected[i]
            ahead = (expected[i] - reached) / spread[i]
            density = exp(-ahead * ahead / 2) / sqrt(2 * pi)
            return fits[i] * spread[i] * (ahead * _below(ahead) + density)

        return max(left, key=gain) if left else None

    def corrected(self, candidate: int) -> float:
        """What is expected of a candidate now, in samples per second."""
        return float(self._corrected()[0][candidate])

    def _corrected(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Expected throughputs of all, and their standard deviations."""
        ran = [i for i, value in self.measured.items() if value]
        rows = self._rows[ran]
        errors = np.log([(self.measured[i] or 1) / self._predicted[i] for i in ran])
        precision = np.diag(self._prior) + rows.T @ rows / NOISE**2
        covariance = np.linalg.inv(precision)
        factors = covariance @ (rows.T @ errors) / NOISE**2
        variances = np.einsum("ij,jk,ik->i", self._rows, covariance, self._rows)
        expected = self._predicted * np.exp(self._rows @ factors)
        return expected, expected * np.sqrt(np.maximum(variances, 1e-12))


def _factors(
    candidates: Sequence[Candidate],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """
    Which factors a candidate's throughput has, a column of ones and zeros for that of all and
    one for each value of each coordinate; and how far from 0 their logarithms may be
    expected, as the inverse of the square.
    """
    columns, spreads = [np.ones(len(candidates))], [OVERALL]
    for series, spread in (
        ([each.values for each in candidates], OF_A_VALUE),
        ([each.division for each in candidates], OF_A_DIVISION),
    ):
        for item in dict.fromkeys(item for each in series for item in each.items()):
            columns.append(np.array([float(item in each.items()) for each in series]))
            spreads.append(spread)
    return np.stack(columns, axis=1), np.array(spreads) ** -2


def _below(deviations: float) -> float:
    """How probable it is that something normally distributed is below that."""
    return (1 + erf(deviations / sqrt(2))) / 2
