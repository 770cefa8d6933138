"""A block as a sequence of tokens, and windows of the sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.traits import Pure

from distir.dialects.dist_attributes import SCOPE
from distir.program import scope_of

Integers = npt.NDArray[np.int64]

FAR = np.iinfo(np.int64).max // 4
"""
The distance that stands for an operand defined outside of the sequence. It is larger
than any distance inside a sequence.
"""


def is_constant(op: Operation) -> bool:
    """
    Whether `op` has the same result anywhere in a program. Such an op can be copied
    next to its users.
    """
    return (
        not op.operands
        and len(op.results) == 1
        and not op.regions
        and not op.successors
        and op.has_trait(Pure)
    )


def defining_constant(value: SSAValue) -> Operation | None:
    """
    Returns the constant op that defines `value`, or None if `value` is not a constant.
    """
    if isinstance(value, OpResult) and is_constant(value.op):
        return value.op
    return None


@dataclass
class Tokens:
    """
    Assigns integers, called tokens, to ops. The token of an op depends on everything
    except the op's scope and the origin of its operands.
    """

    numbers: dict[Any, int] = field(default_factory=dict[Any, int])
    known: dict[Operation, int] = field(default_factory=dict[Operation, int])

    def of(self, op: Operation) -> int:
        """
        Returns the token of `op`. Ops that can replace each other have the same token.
        """
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
        constant = defining_constant(value)
        return value.type if constant is None else ("constant", self.of(constant))


class OpSequence:
    """
    The ops of a block as arrays, without constants and without the terminator. Row i of
    each array belongs to `ops[i]`. A column stands for an operand of the op, or in
    `last_use` for a result of the op. Columns beyond the operands or results of an op
    hold -1.

    - `tokens`: the token of each op;
    - `definition`: the row that defines the operand, or -1 if no row does;
    - `result`: the index of the operand among the results of that row, or -1;
    - `value`: an id of the operand's value, or -1 for a constant;
    - `last_use`: the last row that uses the result: the number of rows if the
      terminator uses it, and -1 if it has no use.

    `pieces` caches which rows are connected, for ranges of rows (start, stop).
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
        self.pieces: dict[tuple[int, int], Integers] = {}
        numbers: dict[SSAValue, int] = {}
        for row, op in enumerate(self.ops):
            for column, operand in enumerate(op.operands):
                if defining_constant(operand) is not None:
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
        """
        Returns, for each operand of rows `start` to `stop - 1`, the number of rows
        between the definition of the operand and the row that uses it.
        """
        definition = self.definition[start:stop]
        rows = np.arange(start, stop)[:, None]
        return np.where(definition < 0, FAR, rows - definition)


class Repeat(NamedTuple):
    """
    Windows of a sequence of ops that compute the same function. A window lists the rows
    of its ops in the sequence; op i of one window corresponds to op i of every other
    window. `results` are the results that ops outside of a window use in at least one
    window, as pairs of an op's index and a result's index.
    """

    windows: list[list[int]]
    results: set[tuple[int, int]]

    @property
    def saved(self) -> int:
        """The number of ops that are saved if one function replaces all windows."""
        return (len(self.windows) - 1) * len(self.windows[0])


def common_scope(ops: list[Operation]) -> list[str]:
    """
    Returns the components of the innermost scope that contains all `ops`. Ops without a
    scope are ignored.
    """
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


def escaping_results(sequence: OpSequence, window: list[int]) -> set[tuple[int, int]]:
    """
    Returns the results of a window that are used outside of the window, as pairs of the
    op's index in the window and the index of the result.
    """
    members = {sequence.ops[row] for row in window}
    return {
        (index, result.index)
        for index, row in enumerate(window)
        for result in sequence.ops[row].results
        if any(use.operation not in members for use in result.uses)
    }


def has_period_below(window: Integers, limit: int) -> bool:
    return any(
        len(window) % period == 0 and bool((window[:-period] == window[period:]).all())
        for period in range(1, min(limit, len(window)))
    )
