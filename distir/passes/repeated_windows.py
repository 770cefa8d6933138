"""
The search behind `outline-repeats`: sequences of operations that occur again and again.

The operations of a block are written as a sequence of integers, one per *token*: equal
tokens stand for operations that differ at most in where their operands come from. A layer
that a model repeats is then a stretch of that sequence with a period, and its copies are
the *windows* of the stretch.

An operation without operands (a constant) has no place of its own in the sequence: it is
part of the token of each of its users. It does not matter where an exporter put it, nor
how many operations share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.traits import Pure

from distir.dialects.dist import SCOPE
from distir.program import scope_of

Integers = npt.NDArray[np.int64]

_FAR = np.iinfo(np.int64).max // 4
"""The distance to a definition that is not in the sequence."""


def is_constant(op: Operation) -> bool:
    """Whether the op computes the same anywhere, and so can stand beside its users."""
    return (
        not op.operands
        and len(op.results) == 1
        and not op.regions
        and not op.successors
        and op.has_trait(Pure)
    )


def constant_of(value: SSAValue) -> Operation | None:
    """The constant that defines a value, if one does."""
    if isinstance(value, OpResult) and is_constant(value.op):
        return value.op
    return None


@dataclass
class Tokens:
    """Numbers operations by everything but their scope and their operands' origin."""

    numbers: dict[Any, int] = field(default_factory=dict[Any, int])
    known: dict[Operation, int] = field(default_factory=dict[Operation, int])

    def of(self, op: Operation) -> int:
        """The token of an op; equal for two ops that may stand for each other."""
        token = self.known.get(op)
        if token is None:
            key = self._key(op)
            token = self.known[op] = self.numbers.setdefault(key, len(self.numbers))
        return token

    def _key(self, op: Operation) -> Any:
        if op.regions or op.successors:
            return op
        return (
            op.name,
            frozenset(op.properties.items()),
            frozenset((k, v) for k, v in op.attributes.items() if k != SCOPE),
            tuple(result.type for result in op.results),
            tuple(self._operand(operand) for operand in op.operands),
        )

    def _operand(self, value: SSAValue) -> Any:
        constant = constant_of(value)
        return value.type if constant is None else ("constant", self.of(constant))


class OpSequence:
    """
    The operations of a block, without constants and terminator, as arrays.

    Row i of each array belongs to `ops[i]`; columns are operands (results for
    `last_use`), padded with -1. `definition` holds the row that defines the operand and
    `result` which of its results it is (both -1 for a block argument), `value` a number
    per distinct value (-1 for constants), and `last_use` the last row that uses the
    result (the number of rows for the terminator, -1 for none).
    """

    def __init__(self, block: Block, tokens: Tokens):
        body = list(block.ops)
        self.ops = [op for op in body[:-1] if not is_constant(op)]
        self.rows = {op: row for row, op in enumerate(self.ops)}
        self.tokens = np.array([tokens.of(op) for op in self.ops], dtype=np.int64)
        shape = len(self.ops), max((len(op.operands) for op in self.ops), default=1)
        self.definition = np.full(shape, -1, dtype=np.int64)
        self.result = np.full(shape, -1, dtype=np.int64)
        self.value = np.full(shape, -1, dtype=np.int64)
        shape = len(self.ops), max((len(op.results) for op in self.ops), default=1)
        self.last_use = np.full(shape, -1, dtype=np.int64)
        numbers: dict[SSAValue, int] = {}
        for row, op in enumerate(self.ops):
            for column, operand in enumerate(op.operands):
                if constant_of(operand) is not None:
                    continue
                self.value[row, column] = numbers.setdefault(operand, len(numbers))
                self._note_use(operand, row)
                if isinstance(operand, OpResult) and operand.op in self.rows:
                    self.definition[row, column] = self.rows[operand.op]
                    self.result[row, column] = operand.index
            for region in op.regions:
                for inner in region.walk():
                    for operand in inner.operands:
                        self._note_use(operand, row)
        for operand in body[-1].operands if body else ():
            self._note_use(operand, len(self.ops))

    def _note_use(self, value: SSAValue, row: int) -> None:
        if isinstance(value, OpResult) and value.op in self.rows:
            self.last_use[self.rows[value.op], value.index] = row

    def distance(self, start: int, stop: int) -> Integers:
        """How many rows back each operand of rows [start, stop) is defined."""
        definition = self.definition[start:stop]
        rows = np.arange(start, stop)[:, None]
        return np.where(definition < 0, _FAR, rows - definition)


class Repeat(NamedTuple):
    """
    Windows of rows that compute the same function: operation i of one window stands for
    operation i of every other. `results` are the (operation, result) pairs that
    operations outside use in some window.
    """

    windows: list[list[int]]
    results: set[tuple[int, int]]

    @property
    def saved(self) -> int:
        """The operations that one function for all windows saves."""
        return (len(self.windows) - 1) * len(self.windows[0])


class _Stretch(NamedTuple):
    """Rows [start, stop) of tokens with a period, at least two periods long."""

    start: int
    stop: int
    period: int

    @property
    def most_saved(self) -> int:
        return ((self.stop - self.start) // self.period - 1) * self.period


def find_repeat(
    sequence: OpSequence, min_ops: int, independent: bool = False
) -> Repeat | None:
    """
    The repeat that saves most operations, or None. Its windows have at least `min_ops`
    operations, are connected and each uses a result of the one before, unless
    `independent`.
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
    if best is None:
        return None if independent else _find_mixed_pair(sequence, min_ops)
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
            # Several copies of something too short do not make one thing long enough.
            if not _has_period_below(tokens[start : start + period], min_ops):
                yield _Stretch(start, stop + period, period)


def _has_period_below(window: Integers, limit: int) -> bool:
    return any(
        len(window) % period == 0 and bool((window[:-period] == window[period:]).all())
        for period in range(1, min(limit, len(window)))
    )


@dataclass(frozen=True)
class _Cut:
    """A stretch cut into `count` windows from row `start` on."""

    start: int
    count: int
    escaping: npt.NDArray[np.bool_]


def _cut(sequence: OpSequence, stretch: _Stretch, independent: bool) -> Repeat | None:
    """
    The windows of a stretch, cut where the fewest values cross the border. One window
    fewer than possible is accepted for that; then the most windows decide, the fewest
    parameters, and the longest common scope.
    """
    period = stretch.period
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
                    -_scope_depth(sequence, pair[1], period),
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
    _add_earlier_windows(sequence, repeat)
    return repeat


def _is_connected(sequence: OpSequence, cut: _Cut, period: int) -> bool:
    """
    Whether a window is one piece. Parts of two blocks that do not depend on each other
    look like a chain where the border runs through both.
    """
    pieces = list(range(period))

    def piece(index: int) -> int:
        while pieces[index] != index:
            pieces[index] = pieces[pieces[index]]
            index = pieces[index]
        return index

    rows = slice(cut.start, cut.start + period)
    for index, sources in enumerate((sequence.definition[rows] - cut.start).tolist()):
        for source in sources:
            if source >= 0:
                pieces[piece(index)] = piece(source)
    used = np.flatnonzero(sequence.last_use[rows].max(axis=1) >= 0)
    return len({piece(index) for index in used.tolist()}) == 1


def _possible_cuts(
    sequence: OpSequence, stretch: _Stretch, independent: bool
) -> Iterator[_Cut]:
    """For each offset of the border, the longest series of isomorphic windows."""
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
    For each row of the stretch, the first row where a window around it may start so
    that it agrees with the window a period later.

    An operand whose definition lies the same distance back in both always agrees. Any
    other must come from outside both windows.
    """
    start, stop, period = stretch
    here = sequence.distance(start, stop - period)
    there = sequence.distance(start + period, stop)
    same = (here == there) & (
        sequence.result[start : stop - period] == sequence.result[start + period : stop]
    )
    outside = np.where(same, _FAR, np.minimum(here, there)).min(axis=1, initial=_FAR)
    return np.arange(start, stop - period) - outside + 1


def _longest_series(follows: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """The windows to skip and to take so that each follows from the one before."""
    breaks = np.concatenate(([-1], np.flatnonzero(~follows), [len(follows)]))
    lengths = np.diff(breaks)
    index = int(lengths.argmax())
    return int(breaks[index]) + 1, int(lengths[index])


def _parameter_count(sequence: OpSequence, cut: _Cut, period: int) -> int:
    """The distinct values that windows take from outside."""
    rows = slice(cut.start, cut.start + cut.count * period)
    values = sequence.value[rows].reshape(cut.count, -1)
    sources = sequence.definition[rows].reshape(cut.count, -1)
    outside = (values[0] >= 0) & (sources[0] < cut.start)
    return len(np.unique(values[:, outside], axis=1).T)


def _scope_depth(sequence: OpSequence, cut: _Cut, period: int) -> int:
    """The length of the shortest scope that some window lies in."""
    starts = range(cut.start, cut.start + cut.count * period, period)
    return min(
        len(common_scope(sequence.ops[start : start + period])) for start in starts
    )


def common_scope(ops: list[Operation]) -> list[str]:
    """The components of the innermost scope that holds all ops that have a scope."""
    common: list[str] | None = None
    for op in ops:
        scope = scope_of(op)
        if not scope:
            continue
        parts = scope.split(".")
        if common is None:
            common = parts
            continue
        length = 0
        while length < min(len(common), len(parts)) and common[length] == parts[length]:
            length += 1
        common = common[:length]
    return common or []


def _add_distant_windows(sequence: OpSequence, repeat: Repeat) -> None:
    """Adds windows elsewhere in the block that do not need a result more."""
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


def _add_earlier_windows(sequence: OpSequence, repeat: Repeat) -> None:
    """
    Adds the windows before the first one whose operations are mixed with others.

    Exporters compute what all layers share (a mask, say) inside the first layer. The
    values that the first window gets where later ones get their predecessor's results
    lead to that layer, whatever stands between its operations.
    """
    while True:
        window = _window_before(sequence, repeat)
        if window is None:
            return
        repeat.windows.insert(0, window)


def _window_before(sequence: OpSequence, repeat: Repeat) -> list[int] | None:
    first, second = repeat.windows[0], repeat.windows[1]
    position = {row: index for index, row in enumerate(first)}
    ends: list[tuple[int, int]] = []
    for model, row in zip(second, first, strict=True):
        for column, source in enumerate(sequence.definition[model].tolist()):
            if source in position:
                # What the first window takes here is a result of the window before.
                if sequence.result[model, column] != sequence.result[row, column]:
                    return None
                ends.append((position[source], int(sequence.definition[row, column])))
    window = _copy_of(sequence, second, ends)
    if window is None or max(window) >= min(first) or not _is_convex(sequence, window):
        return None
    return window if _escaping(sequence, window) <= repeat.results else None


def _copy_of(
    sequence: OpSequence, model: list[int], ends: list[tuple[int, int]]
) -> list[int] | None:
    """
    The window that computes what a model window does, given for some operations of the
    model the rows that stand for them, from which all others are found backwards.
    """
    inside = {row: index for index, row in enumerate(model)}
    found: dict[int, int] = {}
    pending = list(ends)
    while pending:
        index, row = pending.pop()
        if index in found:
            if found[index] != row:
                return None
            continue
        pattern = model[index]
        if row < 0 or sequence.tokens[row] != sequence.tokens[pattern]:
            return None
        found[index] = row
        for column, source in enumerate(sequence.definition[pattern].tolist()):
            if source in inside:
                if sequence.result[row, column] != sequence.result[pattern, column]:
                    return None
                pending.append((inside[source], int(sequence.definition[row, column])))
    members = set(found.values())
    if len(found) != len(model) or len(members) != len(model):
        return None
    window = [found[index] for index in range(len(model))]
    for pattern, row in zip(model, window, strict=True):
        for source, other in zip(
            sequence.definition[pattern].tolist(),
            sequence.definition[row].tolist(),
            strict=True,
        ):
            if source not in inside and other in members:
                return None
    return window


_NEXT_OCCURRENCES = 3
"""How many later operations with its token are tried as the end of the next window."""


def _find_mixed_pair(sequence: OpSequence, min_ops: int) -> Repeat | None:
    """
    Two windows, the second working on results of the first, whose operations may be
    mixed with others: as in `_add_earlier_windows`, for a model of two layers.
    """
    rows_of: dict[int, list[int]] = {}
    for row, token in enumerate(sequence.tokens.tolist()):
        rows_of.setdefault(token, []).append(row)
    best: Repeat | None = None
    best_key: tuple[int, ...] = ()
    for rows in rows_of.values():
        for index, end in enumerate(rows):
            for other in rows[index + 1 : index + 1 + _NEXT_OCCURRENCES]:
                second = _behind(sequence, end, other)
                if len(second) < min_ops:
                    continue
                first = _copy_of(sequence, second, [(len(second) - 1, end)])
                if first is None or not (
                    _is_convex(sequence, first) and _is_convex(sequence, second)
                ):
                    continue
                repeat = Repeat(
                    [first, second],
                    _escaping(sequence, first) | _escaping(sequence, second),
                )
                key = (
                    -len(second),
                    len(repeat.results),
                    -min(
                        len(common_scope([sequence.ops[row] for row in window]))
                        for window in repeat.windows
                    ),
                )
                if best is None or key < best_key:
                    best, best_key = repeat, key
    if best is not None and _has_period_below(
        sequence.tokens[best.windows[1]], min_ops
    ):
        return None
    return best


def _behind(sequence: OpSequence, border: int, end: int) -> list[int]:
    """The rows behind the border that row `end` depends on, and it, in order."""
    needed = {end}
    for row in range(end, border, -1):
        if row in needed:
            needed.update(s for s in sequence.definition[row].tolist() if s > border)
    return sorted(needed)


def _is_convex(sequence: OpSequence, window: list[int]) -> bool:
    """Whether all ops between those of the window can move before or behind it."""
    members = set(window)
    behind: set[int] = set()
    for row in range(min(window), max(window) + 1):
        sources = sequence.definition[row].tolist()
        if row in members:
            if any(source in behind for source in sources):
                return False
            continue
        if not sequence.ops[row].has_trait(Pure):
            return False
        if any(source in members or source in behind for source in sources):
            behind.add(row)
    return True


def _escaping(sequence: OpSequence, window: list[int]) -> set[tuple[int, int]]:
    """The (operation, result) pairs of a window that are used outside it."""
    members = {sequence.ops[row] for row in window}
    return {
        (index, result.index)
        for index, row in enumerate(window)
        for result in sequence.ops[row].results
        if any(use.operation not in members for use in result.uses)
    }
