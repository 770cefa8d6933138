"""The time of a replica's step, as a function of the content of the step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, Protocol


class StepTime(NamedTuple):
    """
    The time of a step in seconds: `latency_s` until the step's tokens are known, and
    `busy_s` until the next step may begin. Without a pipeline both are equal. In a
    pipeline `busy_s` is the time of the slowest stage.
    """

    latency_s: float
    busy_s: float


class StepTimes(Protocol):
    """Interface for the times of a replica's steps."""

    def step(self, decoding: int, context: int, new: int, pairs: float) -> StepTime:
        """
        Returns the time of a step in which `decoding` sequences get one token each, and
        `new` tokens of prompts are read. `context` is the total number of tokens in the
        caches of the decoding sequences. `pairs` is the number of pairs of a prompt
        token and a token to which it attends.
        """
        ...

    def rounds(self, decoding: int, context: int, count: int) -> float:
        """
        Returns the total seconds of `count` consecutive steps without prompts, in which
        `decoding` sequences get one token each. `context` is the total number of tokens
        in the caches of these sequences before the first step.
        """
        ...


def causal_pairs(start: int, count: int) -> int:
    """
    Returns the number of pairs of a token and a token to which it attends, for `count`
    tokens that follow the first `start` tokens of a sequence. A token attends to itself
    and to all tokens before it.
    """
    return count * start + count * (count + 1) // 2


@dataclass(frozen=True)
class PiecewiseLinear:
    """
    A piecewise linear function of one number, given by the points `xs` (ascending) and
    the values `ys`. Above the largest point the function continues with the slope of
    the last piece; below the smallest point it is constant. With a single point, it is
    proportional to x above this point.
    """

    xs: Sequence[float]
    ys: Sequence[float]

    def __call__(self, x: float) -> float:
        """Returns the value at `x`."""
        xs, ys = self.xs, self.ys
        if x <= xs[0]:
            return ys[0]
        if len(xs) == 1:
            return ys[0] * x / xs[0]
        place = min(bisect_right(xs, x), len(xs) - 1)
        left, right = xs[place - 1], xs[place]
        share = (x - left) / (right - left)
        return ys[place - 1] + share * (ys[place] - ys[place - 1])

    def sum(self, x: float, count: int) -> float:
        """Returns the sum of the function's `count` values at x, x + 1, and so on."""
        last = x + count - 1
        inside = [knot for knot in self.xs[:-1] if x < knot < last]
        if not inside:
            return count * (self(x) + self(last)) / 2
        first = ceil(inside[0] - x)
        return self.sum(x, first) + self.sum(x + first, count - first)


class StepTable:
    """
    Step times that are interpolated linearly between measured or simulated points.

    - `batches`, `contexts`: the points of decoding steps; a context is the number of
      tokens in the cache of one sequence, and the smallest context is small enough to be
      neglected;
    - `decode`: the time of a step, by batch and then by context;
    - `prefill`: the points of steps that read prompts: each has a number of tokens and
      the time of the step without attention;
    - `pair_s`: the seconds of attention for a pair of tokens of a prompt.

    A step that both decodes and reads prompts takes the time of reading the same total
    number of tokens, plus the time of attention over the caches.
    """

    def __init__(
        self,
        batches: Sequence[int],
        contexts: Sequence[int],
        decode: Sequence[Sequence[StepTime]],
        prefill: Sequence[tuple[int, StepTime]],
        pair_s: StepTime,
    ):
        self.batches, self.contexts = batches, contexts
        self.decode_times, self.prefill_times = decode, prefill
        self.pair_s = pair_s
        self._rows: dict[int, tuple[PiecewiseLinear, PiecewiseLinear]] = {}
        self._read: dict[int, StepTime] = {}

    def step(self, decoding: int, context: int, new: int, pairs: float) -> StepTime:
        """
        Returns the time of a step in which `decoding` sequences get one token each, and
        `new` tokens of prompts are read. `context` is the total number of tokens in the
        caches of the decoding sequences. `pairs` is the number of pairs of a prompt
        token and a token to which it attends.
        """
        latency = busy = 0.0
        if decoding:
            row = self._rows.get(decoding) or self._row(decoding)
            each = context / decoding
            latency, busy = row[0](each), row[1](each)
            if not new:
                return StepTime(latency, busy)
            # What remains is attention over the caches.
            latency -= row[0].ys[0]
            busy -= row[1].ys[0]
        if new:
            read = self._read.get(decoding + new) or self._reading(decoding + new)
            latency += read.latency_s + pairs * self.pair_s.latency_s
            busy += read.busy_s + pairs * self.pair_s.busy_s
        return StepTime(latency, busy)

    def rounds(self, decoding: int, context: int, count: int) -> float:
        """
        Returns the total seconds of `count` consecutive steps without prompts, in which
        `decoding` sequences get one token each. `context` is the total number of tokens
        in the caches of these sequences before the first step.
        """
        row = (self._rows.get(decoding) or self._row(decoding))[0]
        each = context / decoding
        # Contexts grow by one with each step.
        return row.sum(each, count)

    def _row(self, decoding: int) -> tuple[PiecewiseLinear, PiecewiseLinear]:
        """
        Returns the latency and the time of the slowest stage, in seconds, of a step
        with `decoding` sequences, as functions of the number of cached tokens of each
        sequence.
        """
        sides = list[PiecewiseLinear]()
        for side in range(2):
            values = [
                PiecewiseLinear(
                    self.batches, [times[i][side] for times in self.decode_times]
                )(decoding)
                for i in range(len(self.contexts))
            ]
            sides.append(PiecewiseLinear(self.contexts, values))
        row = self._rows[decoding] = (sides[0], sides[1])
        return row

    def _reading(self, tokens: int) -> StepTime:
        """Returns the time, without attention, of a step that reads `tokens` tokens."""
        counts = [count for count, _ in self.prefill_times]
        found = StepTime(
            *(
                PiecewiseLinear(counts, [time[side] for _, time in self.prefill_times])(
                    tokens
                )
                for side in range(2)
            )
        )
        self._read[tokens] = found
        return found
