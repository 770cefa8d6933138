"""
Finds windows whose ops are mixed with ops that do not belong to a window. Exporters
compute values that all layers share, such as a mask, inside the first layer. The search
starts at the results of a window and goes backwards along operands, and ignores all ops
in between that the window does not need.
"""

from __future__ import annotations

import numpy as np
from xdsl.traits import Pure

from distir.transforms.repeats.op_sequence import (
    OpSequence,
    Repeat,
    escaping_results,
    has_period_below,
)


def add_earlier_windows(sequence: OpSequence, repeat: Repeat) -> None:
    """
    Adds windows before the first window of `repeat` if their ops are mixed with ops
    that do not belong to them. Where later windows take results of the preceding
    window, the first window takes operands from outside. The ops that compute these
    operands form the earlier window.
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
                # The first window takes a result of the window before it here.
                if sequence.result[model, column] != sequence.result[row, column]:
                    return None
                ends.append((position[source], int(sequence.definition[row, column])))
    window = _copy_of(sequence, second, ends)
    if window is None or max(window) >= min(first) or not _is_convex(sequence, window):
        return None
    return window if escaping_results(sequence, window) <= repeat.results else None


def _copy_of(
    sequence: OpSequence, model: list[int], ends: list[tuple[int, int]]
) -> list[int] | None:
    """
    Returns the window that computes the same as the window `model`, or None. `ends` has
    pairs of an index in `model` and the row that corresponds to it in the new window.
    The remaining rows are found by going backwards from these rows.
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
"""
The number of later ops with the same token that are tried as the end of the next
window.
"""


def find_mixed_pair(sequence: OpSequence, min_ops: int) -> Repeat | None:
    """
    Returns two windows whose ops may be mixed with ops outside of both windows, or None
    if there are no such windows. The second window uses results of the first window,
    and each has at least `min_ops` ops. This search is for models of two layers.
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
                    _feeds(sequence, first, second)
                    and _is_convex(sequence, first)
                    and _is_convex(sequence, second)
                ):
                    continue
                repeat = Repeat(
                    [first, second],
                    escaping_results(sequence, first)
                    | escaping_results(sequence, second),
                )
                key = -len(second), len(repeat.results)
                if best is None or key < best_key:
                    best, best_key = repeat, key
    if best is not None and has_period_below(sequence.tokens[best.windows[1]], min_ops):
        return None
    return best


def _feeds(sequence: OpSequence, first: list[int], second: list[int]) -> bool:
    return bool(np.isin(sequence.definition[second], first).any())


def _behind(sequence: OpSequence, border: int, end: int) -> list[int]:
    """
    Returns row `end` and the rows after row `border` on which row `end` depends, in
    order.
    """
    needed = {end}
    for row in range(end, border, -1):
        if row in needed:
            needed.update(s for s in sequence.definition[row].tolist() if s > border)
    return sorted(needed)


def _is_convex(sequence: OpSequence, window: list[int]) -> bool:
    """
    Whether all ops between the ops of `window` can move before or after the window.
    """
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
