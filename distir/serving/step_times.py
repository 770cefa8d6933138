"""How long a step of a replica takes, by what is in the step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, Protocol


class StepTime(NamedTuple):
    """
    The seconds of a step: until its tokens are known, and until the next step may
    begin. Both are equal without a pipeline. In a pipeline the second is the time of
    its slowest stage.
    """

    latency_s: float
    busy_s: float


class StepTimes(Protocol):
    """The times of a replica's steps."""

    def step(self, decoding: int, context: int, new: int, pairs: int) -> StepTime:
        """
        Returns the time of a step in which `decoding` sequences get a token each, with
        `context` tokens in their caches all together, and `new` tokens of prompts are
        read. `pairs` counts the pairs of a prompt's token and a token that it attends
        to.
        """
        ...

    def rounds(self, decoding: int, context: int, count: int) -> float:
        """
        Returns the seconds of `count` steps in which `decoding` sequences get a token
        each, and nothing else happens. `context` are the tokens in their caches in the
        first step.
        """
        ...


def causal_pairs(start: int, count: int) -> int:
    """
    Returns the number of pairs of a token and a token that it attends to, itself
    included, for `count` tokens behind `start` others of the same sequence.
    """
    return count * start + count * (count + 1) // 2


@dataclass(frozen=True)
class PiecewiseLinear:
    """
    A function of one number that is linear between given points. Beyond the last point
    it goes on with the slope before it, and below the first it is constant.
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
        """Returns the sum of the values at x, x + 1, ..., `count` of them."""
        last = x + count - 1
        inside = [knot for knot in self.xs[:-1] if x < knot < last]
        if not inside:
            return count * (self(x) + self(last)) / 2
        first = ceil(inside[0] - x)
        return self.sum(x, first) + self.sum(x + first, count - first)


class StepTable:
    """
    Step times from a few points, linear between them.

    - `batches`, `contexts`: the points of decoding steps; contexts are tokens in the
      cache of one sequence, and the first is as good as none;
    - `decode`: the time of a step by batch and by context;
    - `prefill`: the points of steps that read prompts: numbers of tokens, each with the
      time of all but attention;
    - `pair_s`: the seconds of attention for a pair of tokens of a prompt (latency, and
      slowest stage).

    A step that does both takes as long as one that reads as many tokens, and attention
    over the caches besides: products of matrices do not care whose tokens they get.
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

    def step(self, decoding: int, context: int, new: int, pairs: int) -> StepTime:
        """Returns the time of a step, see `StepTimes`."""
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
        """Returns the seconds of `count` steps, see `StepTimes`."""
        row = (self._rows.get(decoding) or self._row(decoding))[0]
        each = context / decoding
        # Contexts grow by one with each step.
        return row.sum(each, count)

    def _row(self, decoding: int) -> tuple[PiecewiseLinear, PiecewiseLinear]:
        """
        Returns latency and slowest stage of `decoding` sequences, by the context of
        each.
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
        """Returns the time of all but attention for `tokens` tokens of prompts."""
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
