"""
The variables of a method: names for the values of its function, and short expressions
for lists of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.per_rank import CoordinateOp
from distir.dialects.torch import MessageOp
from distir.dialects.train_ops.opaque import OpaqueBase
from distir.dialects.train_ops.recurrent import GatheredOp
from distir.lowering.emitter import known_constant
from distir.lowering.helper_modules import helper_modules
from distir.lowering.source.class_names import ClassNames
from distir.lowering.source.paths import Path, expression
from distir.lowering.source.runs import MethodPlan, ValueList, plan
from distir.lowering.source.text import Names, sanitized

_SHORTEST = 3
"""The number of repeated items from which a generator replaces them in a list."""


@dataclass(frozen=True)
class Expression:
    """
    The expression for a value: `start`, or `start[index]end` for an element of a list
    or for an attribute of such an element.
    """

    start: str
    index: int | None = None
    end: str = ""

    def __str__(self) -> str:
        return self.start if self.index is None else self.at(str(self.index))

    def at(self, index: str) -> str:
        """Returns the expression with its index replaced by the text `index`."""
        return f"{self.start}[{index}]{self.end}"


def member(path: Path) -> Expression:
    """Returns the expression for the member of `self` at `path`."""
    for i, part in enumerate(path):
        if part.isdecimal():
            end = expression(path[i + 1 :], "")
            return Expression(expression(path[:i]), int(part), end)
    return Expression(expression(path))


AllOf = Callable[[str, Sequence[int], Sequence[str]], "str | None"]
"""
A function from the expression of a list, indices in it and a list of attribute paths.
It returns a short expression for the attributes at these paths of an element `each`, or
None if there is none.
"""


def listed(items: Sequence[Expression], all_of: AllOf) -> list[str]:
    """
    Returns the items of a list as source text. Items that repeat with increasing or
    decreasing indices become one generator, such as `*(each.weight for each in
    layers[:12])`.
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
    Returns the period and the number of occurrences of the longest repetition that
    starts at position `at`; (1, 1) if nothing repeats.
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
    """
    Whether the items of the period with index `count` continue the pattern of the first
    two periods: the same expressions, with indices that go up or down by one each time.
    """
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
    Returns a generator expression for a pattern that repeats `count` times. `items` are
    the first two periods of the pattern.
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
    Returns the slice of `count` elements that begins with the element of `first` and
    continues towards the element of `second`.
    """
    at = first.index or 0
    if not _descends(first, second):
        return f"{first.start}[{at or ''}:{at + count}]"
    end = at - count
    return f"{first.start}[{at}:{end if end >= 0 else ''}:-1]"


def _index(first: int, low: int, count: int, descends: bool) -> str:
    """
    Returns the text of an index that starts at `first` and goes up or down, as an
    expression of `i`, which counts up from `low`.
    """
    if descends:
        return f"{first + low} - i"
    return f"i + {first - low}" if first > low else "i"


_MODULES = ("torch", "F", "nn", "modules", *sorted(helper_modules()))
"""Names that the variables of a method must not hide."""

Key = SSAValue | ValueList
"""The content of a variable: one value, or a list of the values of several calls."""


class MethodNames:
    """
    The names in one method, as a `ValueNames`. `writer` has the names in the method's
    class.

    - `plan`: the method's statements;
    - `variables`: the local variables that hold one value each, including arguments
      that the method deletes;
    - `expressions`: the expression for each value, such as a variable or a member;
    - `popped`: the lists whose elements are removed one by one until they are empty.
    """

    def __init__(self, writer: ClassNames, function: FuncOp):
        self.writer = writer
        self.plan: MethodPlan = plan(function, writer.program.passed_members)
        self.names = Names(_MODULES)
        self.expressions: dict[SSAValue, Expression] = {}
        self.variables: dict[SSAValue, str] = {}
        self.popped: set[ValueList] = set()

    def name(self, value: SSAValue) -> str:
        known = known_constant(value)
        if known is not None:
            return self.writer.constant(known, value.name_hint)
        return str(self.expression(value))

    def listed(self, values: Sequence[SSAValue]) -> list[str]:
        return listed([self.expression(v) for v in values], self.writer.all_of_kind)

    def helper(self, module: str) -> str:
        return self.writer.helper(module)

    def group(self, op: Operation) -> str:
        assert isinstance(
            op, CollectiveOp | CoordinateOp | GatheredOp | MessageOp | OpaqueBase
        )
        assert op.axes is not None  # the per-rank form
        return self.writer.group(op, tuple(a.data for a in op.axes.data))

    def number(self, value: int) -> str:
        return self.writer.number(value)

    def expression(self, value: SSAValue) -> Expression:
        if known_constant(value) is not None:
            return Expression(self.name(value))
        if (known := self.expressions.get(value)) is not None:
            return known
        source, index, part = self.plan.lists[value]
        end = "" if part is None else f"[{part}]"
        return Expression(source.name, index, end)

    def result(self, value: SSAValue) -> str:
        name = self.names.fresh(self.writer.hint(value), "x")
        self.bind(value, name)
        return name

    def bind(self, value: SSAValue, name: str) -> None:
        self.variables[value] = name
        self.expressions[value] = Expression(name)

    def key(self, value: SSAValue) -> Key:
        held = self.plan.lists.get(value)
        return value if held is None else held[0]

    def plural(self, value: SSAValue) -> str:
        hint = sanitized(self.writer.hint(value)) or "value"
        return hint if hint.endswith(("s", "ed")) else f"{hint}s"
