"""
Corrects predicted throughputs by measurements, and chooses the next point (knob values
and a plan) to measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import erf, exp, pi, sqrt

import numpy as np
import numpy.typing as npt

from distir.scheduling.knobs import KnobChoice

OVERALL = 1.0
"""
The expected error that all predictions have in common, as a standard deviation of the
logarithm of the throughput.
"""

OF_A_VALUE = 0.05
"""
The expected additional error of each value of a knob, as a standard deviation of the
logarithm of the throughput.
"""

REACH = 0.5
"""
The distance at which the correlation between the errors of two values of a numeric knob
is 1 / e. It is a fraction of the number of values in their order.
"""

OF_A_DIVISION = 0.3
"""
The expected additional error of each way to divide a program among devices, as a
standard deviation of the logarithm of the throughput.
"""

NOISE = 0.02
"""
The expected relative difference between two measurements, or between a measurement and
a corrected prediction.
"""

DEVIATIONS = 1.5
"""
The number of standard deviations by which the optimistic estimate of a throughput
exceeds the expected one.
"""

LEAST_CAPACITY = 1 / 3
"""
The least fraction of a device's memory at which predicted memory may mean a full
device. Memory that predictions leave out (fragments, workspaces, libraries) takes at
most twice as much as they predict.
"""

MEMORY_NOISE = 0.02
"""The expected relative error of predictions of memory compared with each other."""

IMPROBABLE = 0.02
"""
Candidates are not tried if the probability that they fit into memory is at most this.
"""

_CAPACITIES = 1000


@dataclass(frozen=True)
class Candidate:
    """
    A point (knob values and a plan) that may be measured.

    - `values`: the values of the knobs and of the plan's options, by name;
    - `throughput`: the predicted samples per second;
    - `memory`: the predicted bytes on the fullest device;
    - `division`: by name, the values that describe how the program is divided among
      devices. Predictions are expected to have larger errors for these values.
    """

    values: Mapping[str, KnobChoice]
    throughput: float
    memory: float
    division: Mapping[str, KnobChoice] = field(default_factory=dict[str, KnobChoice])


class Corrections:
    """
    Chooses the next candidate to measure, and the time to stop.

    The throughput of a candidate is modelled as its prediction, times a factor common
    to all candidates, times a factor for each value of each coordinate (a knob, or an
    option of the plan). The logarithms of the factors are normally distributed with the
    expected errors. Factors of close numeric values are similar (`REACH`). Least
    squares over the measurements give the mean and the standard deviation of the
    factors.

    Devices also hold memory that predictions leave out. So the memory is modelled as a
    single capacity in predicted bytes, of at most `memory`, the bytes of the device.
    The measured candidates that fitted or ran out of memory determine the probability
    of each capacity.
    """

    def __init__(self, candidates: Sequence[Candidate], memory: float):
        self.candidates = candidates
        self.measured: dict[int, float | None] = {}
        self._predicted = np.array([candidate.throughput for candidate in candidates])
        self._rows, self._precision = _factors(candidates)
        needed = np.array([max(c.memory, 1.0) for c in candidates])
        capacities = np.linspace(LEAST_CAPACITY * memory, memory, _CAPACITIES)
        away = (capacities - needed[:, None]) / (MEMORY_NOISE * needed[:, None])
        self._fits = np.array([[_below(x) for x in row] for row in away])
        """
        The probability that each candidate (row) fits into each capacity (column).
        """
        self._capacity = np.full(_CAPACITIES, 1 / _CAPACITIES)
        """The probability of each capacity."""

    @property
    def best(self) -> int | None:
        """
        The index of the candidate with the best measured throughput, or None if no
        measured candidate fits into memory.
        """
        ran = {i: value for i, value in self.measured.items() if value is not None}
        return max(ran, key=lambda i: ran[i]) if ran else None

    def add(self, candidate: int, throughput: float | None) -> None:
        """
        Adds a measurement of a candidate. `throughput` is in samples per second; None
        means that the candidate ran out of memory.
        """
        self.measured[candidate] = throughput
        fits = self._fits[candidate]
        self._capacity = self._capacity * (fits if throughput is not None else 1 - fits)
        # Nothing is so improbable that measurements cannot teach otherwise.
        self._capacity += 1e-12
        self._capacity /= self._capacity.sum()

    def next(self) -> int | None:
        """
        Returns the index of the candidate to measure next: the candidate with the
        largest expected improvement of the best throughput, multiplied by the
        probability that the candidate fits into memory. Returns None if no candidate
        that may fit beats the best one even in its optimistic estimate.
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
        """
        Returns the expected throughput of a candidate after all measurements so far, in
        samples per second.
        """
        return float(self._corrected()[0][candidate])

    def _corrected(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """
        Returns the expected throughputs of all candidates, and their standard
        deviations.
        """
        ran = [i for i, value in self.measured.items() if value]
        rows = self._rows[ran]
        errors = np.log([(self.measured[i] or 1) / self._predicted[i] for i in ran])
        precision = self._precision + rows.T @ rows / NOISE**2
        covariance = np.linalg.inv(precision)
        factors = covariance @ (rows.T @ errors) / NOISE**2
        variances = np.einsum("ij,jk,ik->i", self._rows, covariance, self._rows)
        expected = self._predicted * np.exp(self._rows @ factors)
        return expected, expected * np.sqrt(np.maximum(variances, 1e-12))


def _factors(
    candidates: Sequence[Candidate],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """
    Returns two matrices. The first has a row of ones and zeros per candidate; its
    columns are the common factor and one factor per value of each coordinate. The
    second is the inverse of the expected covariance of the factors' logarithms.
    """
    columns = [np.ones(len(candidates))]
    blocks = [np.array([[OVERALL**2]])]
    for series, spread in (
        ([each.values for each in candidates], OF_A_VALUE),
        ([each.division for each in candidates], OF_A_DIVISION),
    ):
        for name in dict.fromkeys(name for each in series for name in each):
            values = list(dict.fromkeys(each[name] for each in series if name in each))
            alike = np.eye(len(values))
            if len(values) > 1 and not any(isinstance(value, str) for value in values):
                values.sort()
                places = np.linspace(0.0, 1.0, len(values))
                alike = np.exp(-np.abs(places - places[:, None]) / REACH)
            for value in values:
                columns.append(
                    np.array([float(each.get(name) == value) for each in series])
                )
            blocks.append(spread**2 * alike)
    covariance = np.zeros((len(columns), len(columns)))
    start = 0
    for block in blocks:
        end = start + len(block)
        covariance[start:end, start:end] = block
        start = end
    inverse = np.asarray(np.linalg.inv(covariance), np.float64)
    return np.stack(columns, axis=1), inverse


def _below(deviations: float) -> float:
    """
    Returns the probability that a normally distributed number is at most `deviations`
    standard deviations above its mean.
    """
    return (1 + erf(deviations / sqrt(2))) / 2
