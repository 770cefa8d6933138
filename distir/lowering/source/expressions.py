"""Writes values in Python: one by one, and in lists that repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distir.lowering.source.paths import Path, expression

_SHORTEST = 3
"""Lists of fewer repeated items are written out."""


@dataclass(frozen=True)
class Expression:
    """
    The expression for a value: `start`, or `start[index]end` for an element of a list or of
    an object in one.
    """

    start: str
    index: int | None = None
    end: str = ""

    def __str__(self) -> str:
        return self.start if self.index is None else self.at(str(self.index))

    def at(self, index: str) -> str:
        """Returns the expression with another index."""
        return f"{self.start}[{index}]{self.end}"


def member(path: Path) -> Expression:
    """Returns the expression for a member at a path of `self`."""
    for i, part in enumerate(path):
        if part.isdecimal():
            end = expression(path[i + 1 :], "")
            return Expression(expression(path[:i]), int(part), end)
    return Expression(expression(path))


AllOf = Callable[[str, Sequence[int], Sequence[str]], "str | None"]
"""
Returns a short expression for what the elements with these numbers of a list have, where
each contributes an expression `each` with each of these ends; None if there is none.
"""


def listed(items: Sequence[Expression], all_of: AllOf) -> list[str]:
    """
    Returns the items of a list as Python writes them between its brackets: items that
    repeat with another index become a generator, `*(each.weight for each in layers[:12])`.
    """
    found: list[str] = []
    at = 0
    while at < len(items):
        period, count = _repeat(items, at)
        if period * count >= _SHORTEST and count > 1:
            found.append(_generator(items[at : at + 2 * period], count, all_of))
            at += period * count
        else:
            found.append(str(items[at]))
            at += 1
    return found


def _repeat(items: Sequence[Expression], at: int) -> tuple[int, int]:
    """
    Returns the period of the longest repetition from a position on, and how often it
    occurs.
    """
    best = (1, 1)
    for period in range(1, (len(items) - at) // 2 + 1):
        if items[at + period - 1].index is None:
            break
        count = 1
        while _follows(items, at, period, count):
            count += 1
        if count > 1 and period * count > best[0] * best[1]:
            best = (period, count)
    return best


def _follows(items: Sequence[Expression], at: int, period: int, count: int) -> bool:
    """Whether the next items are the first ones with their indices `count` steps on."""
    block = items[at + count * period : at + (count + 1) * period]
    if len(block) < period:
        return False
    for first, second, own in zip(
        items[at : at + period],
        items[at + period : at + 2 * period],
        block,
        strict=True,
    ):
        if first.index is None or second.index is None or own.index is None:
            return False
        step = second.index - first.index
        if abs(step) != 1 or own.index != first.index + step * count:
            return False
        if (own.start, own.end) != (first.start, first.end):
            return False
    return True


def _generator(items: Sequence[Expression], count: int, all_of: AllOf) -> str:
    """
    Returns a generator for what repeats `count` times; `items` are the first two periods.
    """
    period = len(items) // 2
    first, second = items[:period], items[period:]
    same = all((x.start, x.index) == (first[0].start, first[0].index) for x in first)
    if same and len({x.index for x in second}) == 1:
        over = f"for each in {_slice(first[0], second[0], count)}"
        texts = [f"each{x.end}" for x in first]
        whole = "each"
        at, step = first[0].index or 0, -1 if _descends(first[0], second[0]) else 1
        numbers = range(at, at + step * count, step)
        short = all_of(first[0].start, numbers, [x.end for x in first])
        if period > 1 and short is not None:
            return f"*(x {over} for x in {short})"
    else:
        low = min(x.index or 0 for x in first)
        low -= count - 1 if any(map(_descends, first, second)) else 0
        over = f"for i in range({f'{low}, ' if low else ''}{low + count})"
        texts = [
            x.at(_index(x.index or 0, low, count, _descends(x, y)))
            for x, y in zip(first, second, strict=True)
        ]
        whole = texts[0].removesuffix("[0]")
    if period == 1:
        return f"*({texts[0]} {over})"
    if texts == [f"{whole}[{k}]" for k in range(period)]:
        return f"*(x {over} for x in {whole}[:{period}])"
    return f"*(x {over} for x in ({', '.join(texts)}))"


def _descends(first: Expression, second: Expression) -> bool:
    return (second.index or 0) < (first.index or 0)


def _slice(first: Expression, second: Expression, count: int) -> str:
    """
    Returns the slice of `count` elements from that of `first` on, in the direction of
    `second`.
    """
    at = first.index or 0
    if not _descends(first, second):
        return f"{first.start}[{at or ''}:{at + count}]"
    end = at - count
    return f"{first.start}[{at}:{end if end >= 0 else ''}:-1]"


def _index(first: int, low: int, count: int, descends: bool) -> str:
    """Returns the index as a function of `i`, which counts up from `low`."""
    if descends:
        return f"{first + low} - i"
    return f"i + {first - low}" if first > low else "i"
