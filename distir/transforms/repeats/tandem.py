"""Finds windows that follow one another without a gap, and equal windows elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from distir.transforms.repeats.mixed import add_earlier_windows
from distir.transforms.repeats.op_sequence import (
    FAR,
    Integers,
    OpSequence,
    Repeat,
    has_period_below,
)


class _Stretch(NamedTuple):
    """
    Rows `start` to `stop - 1` of a sequence, whose tokens repeat with a period. They
    have at least two periods.
    """

    start: int
    stop: int
    period: int

    @property
    def most_saved(self) -> int:
        return ((self.stop - self.start) // self.period - 1) * self.period


def find_tandem_repeat(
    sequence: OpSequence, min_ops: int, independent: bool
) -> Repeat | None:
    """
    Returns the repeat that saves the most ops, or None if there is no repeat. Its
    windows have at least `min_ops` ops. Unless `independent`, the ops of a window are
    connected, and each window uses a result of the preceding window.
    """
    stretches = sorted(
        _stretches(sequence.tokens, min_ops), key=lambda s: (-s.most_saved, s.period)
    )
    best: Repeat | None = None
    for stretch in stretches:
        if best is not None and stretch.most_saved <= best.saved:
            break
        repeat = _cut(sequence, stretch, independent)
        if repeat is not None and (best is None or repeat.saved > best.saved):
            best = repeat
    if best is not None:
        _add_distant_windows(sequence, best)
    return best


def _stretches(tokens: Integers, min_ops: int) -> Iterator[_Stretch]:
    for period in range(min_ops, len(tokens) // 2 + 1):
        equal = tokens[:-period] == tokens[period:]
        if np.count_nonzero(equal) < period:
            continue
        breaks = np.concatenate(([-1], np.flatnonzero(~equal), [len(equal)]))
        for index in np.flatnonzero(np.diff(breaks) > period):
            start, stop = int(breaks[index]) + 1, int(breaks[index + 1])
            # Several copies of a window that is too short do not make a long enough one.
            if not has_period_below(tokens[start : start + period], min_ops):
                yield _Stretch(start, stop + period, period)


@dataclass(frozen=True)
class _Cut:
    """
    A division of the rows of a stretch into `count` windows, beginning with row
    `start`. `escaping` marks the results that are used outside of their window.
    """

    start: int
    count: int
    escaping: npt.NDArray[np.bool_]


def _cut(sequence: OpSequence, stretch: _Stretch, independent: bool) -> Repeat | None:
    """
    Returns the windows of a stretch, divided where the fewest values cross a border,
    even if this gives one window fewer than possible. Further criteria are, in this
    order: the most windows, the fewest parameters, an op with a parameter right after
    the border, and the first border. Layers begin with an op that takes a parameter,
    while an activation before the first layer may look like the end of a layer. Returns
    None if no division is possible.
    """
    period = stretch.period
    if not independent and not _has_connected_window(sequence, stretch):
        return None
    cuts = list(_possible_cuts(sequence, stretch, independent))
    enough = max(2, max((cut.count for cut in cuts), default=0) - 1)

    def crossing(cut: _Cut) -> int:
        return int(cut.escaping.sum())

    for _, equal in groupby(sorted(cuts, key=crossing), key=crossing):
        found = [
            (_windows(sequence, cut, period), cut)
            for cut in equal
            if cut.count >= enough
            and (independent or _is_connected(sequence, cut, period))
        ]
        if found:
            repeat, _ = min(
                found,
                key=lambda pair: (
                    -len(pair[0].windows),
                    _parameter_count(sequence, pair[1], period),
                    not _begins_with_parameter(sequence, pair[1], period),
                ),
            )
            return repeat
    return None


def _windows(sequence: OpSequence, cut: _Cut, period: int) -> Repeat:
    starts = range(cut.start, cut.start + cut.count * period, period)
    repeat = Repeat(
        [list(range(start, start + period)) for start in starts],
        {(int(op), int(result)) for op, result in np.argwhere(cut.escaping)},
    )
    add_earlier_windows(sequence, repeat)
    return repeat


def _is_connected(sequence: OpSequence, cut: _Cut, period: int) -> bool:
    """
    Whether the ops of a window are connected by operands. Without this test, two blocks
    that do not depend on each other would look like a chain of windows if borders run
    through both.
    """
    start = cut.start
    pieces = _pieces(sequence, start, start + period)
    used = sequence.last_use[start : start + period].max(axis=1) >= 0
    return len(np.unique(pieces[used])) == 1


def _pieces(sequence: OpSequence, start: int, stop: int) -> Integers:
    """
    Returns a number for each row from `start` to `stop - 1`. Rows that operands connect
    have the same number.
    """
    pieces = list(range(stop - start))

    def piece(index: int) -> int:
        while pieces[index] != index:
            pieces[index] = pieces[pieces[index]]
            index = pieces[index]
        return index

    for index, sources in enumerate((sequence.definition[start:stop] - start).tolist()):
        for source in sources:
            if source >= 0:
                pieces[piece(index)] = piece(source)
    return np.array([piece(index) for index in range(len(pieces))], dtype=np.int64)


def _has_connected_window(sequence: OpSequence, stretch: _Stretch) -> bool:
    """
    Whether the ops of any window of a stretch can be connected. They cannot if each
    window has ops from several unconnected parts of the stretch, as in updates of many
    parameters.
    """
    start, stop, period = stretch
    pieces = sequence.pieces.get((start, stop))
    if pieces is None:
        pieces = sequence.pieces[start, stop] = _pieces(sequence, start, stop)
    used = np.flatnonzero(sequence.last_use[start:stop].max(axis=1) >= 0)
    # changes[n]: how often the piece changes between the first n of the used rows
    changes = np.concatenate([[0, 0], np.cumsum(np.diff(pieces[used]) != 0)])
    first = np.arange(stop - start - 2 * period + 1)
    begin, end = np.searchsorted(used, first), np.searchsorted(used, first + period)
    changed = changes[end] - changes[np.minimum(begin + 1, end)]
    return bool(((changed == 0) & (begin < end)).any())


def _possible_cuts(
    sequence: OpSequence, stretch: _Stretch, independent: bool
) -> Iterator[_Cut]:
    """
    A cut divides a stretch of ops into windows of equal length. Yields, for each
    position at which the first window can start, the cut with the most equivalent
    windows in a row.
    """
    start, stop, period = stretch
    earliest = _earliest_starts(sequence, stretch)
    for offset in range(period):
        first = start + offset
        count = (stop - first) // period
        if count < 2:
            break
        borders = first + period * np.arange(count)
        by_window = earliest[offset : offset + (count - 1) * period]
        follows = by_window.reshape(count - 1, -1).max(axis=1) <= borders[:-1]
        if not independent:
            sources = sequence.definition[first + period : first + count * period]
            sources = sources.reshape(count - 1, -1)
            fed = (sources >= borders[:-1, None]) & (sources < borders[1:, None])
            follows &= fed.any(axis=1)
        skipped, windows = _longest_series(follows)
        if windows < 2:
            continue
        first += skipped * period
        uses = sequence.last_use[first : first + windows * period]
        uses = uses.reshape(windows, period, sequence.last_use.shape[1])
        ends = first + period * np.arange(1, windows + 1)
        escaping = (uses >= ends[:, None, None]).any(axis=0)
        if escaping.any():
            yield _Cut(first, windows, np.asarray(escaping))


def _earliest_starts(sequence: OpSequence, stretch: _Stretch) -> Integers:
    """
    Returns, for each row of the stretch, the first row at which a window around the row
    may start. From that row on, all operands agree with the operands one period later:
    their definitions are the same number of rows back, or outside of both windows.
    """
    start, stop, period = stretch
    here = sequence.distance(start, stop - period)
    there = sequence.distance(start + period, stop)
    same = (here == there) & (
        sequence.result[start : stop - period] == sequence.result[start + period : stop]
    )
    outside = np.where(same, FAR, np.minimum(here, there)).min(axis=1, initial=FAR)
    return np.arange(start, stop - period) - outside + 1


def _longest_series(follows: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """
    Finds the longest series of windows in which each window follows from the preceding
    window. Returns the number of windows before the series, and the number of windows
    in the series. `follows` tells for each window whether the next window follows from
    it.
    """
    breaks = np.concatenate(([-1], np.flatnonzero(~follows), [len(follows)]))
    lengths = np.diff(breaks)
    index = int(lengths.argmax())
    return int(breaks[index]) + 1, int(lengths[index])


def _parameter_count(sequence: OpSequence, cut: _Cut, period: int) -> int:
    """Returns the number of distinct values that the windows take from outside."""
    rows = slice(cut.start, cut.start + cut.count * period)
    values = sequence.value[rows].reshape(cut.count, -1)
    sources = sequence.definition[rows].reshape(cut.count, -1)
    outside = (values[0] >= 0) & (sources[0] < cut.start)
    return len(np.unique(values[:, outside], axis=1).T)


def _begins_with_parameter(sequence: OpSequence, cut: _Cut, period: int) -> bool:
    """
    Whether the first op of each window takes a value from outside of the windows. The
    value must not be the same in all windows.
    """
    rows = cut.start + period * np.arange(cut.count)
    values, sources = sequence.value[rows], sequence.definition[rows]
    outside = ((values >= 0) & (sources < cut.start)).all(axis=0)
    return any(len(set(column)) > 1 for column in values[:, outside].T.tolist())


def _add_distant_windows(sequence: OpSequence, repeat: Repeat) -> None:
    """
    Adds equal windows elsewhere in the block, unless more of their results are used
    than of the windows of `repeat`.
    """
    used = np.zeros(len(sequence.ops), dtype=np.bool_)
    for window in repeat.windows:
        used[min(window) : max(window) + 1] = True
    model = repeat.windows[-1]
    period = len(model)
    tokens = sequence.tokens[model]
    distance = sequence.distance(model[0], model[0] + period)
    inside = distance <= np.arange(period)[:, None]
    results = sequence.result[model]
    for start in np.flatnonzero(sequence.tokens == tokens[0]).tolist():
        stop = start + period
        if stop > len(used) or used[start:stop].any():
            continue
        if (sequence.tokens[start:stop] != tokens).any():
            continue
        there = sequence.distance(start, stop)
        there_inside = there <= np.arange(period)[:, None]
        agrees = np.where(
            inside,
            (distance == there) & (results == sequence.result[start:stop]),
            ~there_inside,
        )
        escaping = np.argwhere(sequence.last_use[start:stop] >= stop)
        if agrees.all() and {(int(o), int(r)) for o, r in escaping} <= repeat.results:
            repeat.windows.append(list(range(start, stop)))
            used[start:stop] = True
    repeat.windows.sort()
