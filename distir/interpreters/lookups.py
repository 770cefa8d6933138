"""Finds the tables that a program's integers index, by following the uses of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist_attributes import ENTRIES
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import LOOK_UPS, SAME_VALUES, SELECTIONS
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.losses import CrossEntropyOp, CrossEntropySumOp
from distir.errors import DistIRError
from distir.program import describe, functions

_KEEPS_VALUES = SAME_VALUES | SELECTIONS
"""
The names of ops whose results hold elements of their first operand, in any order and
possibly only some of them.
"""

_SELECTS = "onnx.Where"


@dataclass(frozen=True)
class Lookup:
    """
    An op that uses integers as indices of a table of `size` entries. If `checked` is
    set, an index below `least` or at least `size` is an error, except for the index
    `ignored`.
    """

    op: Operation
    size: int
    least: int = 0
    ignored: int | None = None
    checked: bool = True

    def check(self, name: str, array: npt.NDArray[Any]) -> None:
        """
        Raises DistIRError if `array`, the value of the argument `name`, holds an index
        outside of the table. Does nothing unless `checked` is set.
        """
        if not self.checked:
            return
        wrong = (array < self.least) | (array >= self.size)
        if self.ignored is not None:
            wrong &= array != self.ignored
        if not wrong.any():
            return
        value = array[wrong].flat[0]
        if self.least < 0:
            raise DistIRError(
                f"input {name!r} holds {value}, but {describe(self.op)} looks up "
                f"{self.size} entries with it; give numbers from {self.least} to "
                f"{self.size - 1}"
            )
        rest = "" if self.ignored is None else f" or {self.ignored}, which is ignored"
        raise DistIRError(
            f"input {name!r} holds {value}, which is none of the {self.size} classes of "
            f"{describe(self.op)}; give labels from 0 to {self.size - 1}{rest}"
            + ("" if rest else ", and an ignore_index if it marks padding")
        )


class Uses:
    """Finds the ops that use the values of a program, across calls."""

    def __init__(self, module: ModuleOp):
        self._functions = functions(module)
        self._calls: dict[str, list[CallOp]] = {}
        for op in module.walk():
            if isinstance(op, CallOp):
                self._calls.setdefault(op.callee.string_value(), []).append(op)

    def lookups(self, value: SSAValue, *, exactly: bool = False) -> list[Lookup]:
        """
        Returns the lookups that use elements of `value` as indices. The elements may
        have been rearranged before the lookup, and some may have been left out. With
        `exactly`, only lookups that use all elements, unchanged, are returned.
        """
        kept = SAME_VALUES if exactly else _KEEPS_VALUES | {_SELECTS}
        found: list[Lookup] = []
        for op, index in self._reached(value, kept):
            lookup = _lookup(op, index)
            if lookup is not None:
                found.append(lookup)
        return found

    def reader(self, value: SSAValue) -> Operation | None:
        """
        Returns the first op that computes with `value`, or None if no op does. Calls,
        returns, collectives and layout changes are not such ops.
        """
        found = [
            op
            for op, _ in self._reached(value, frozenset())
            if op.dialect_name() not in ("collective", "dist")
            and not isinstance(op, CallOp | ReturnOp)
        ]
        return found[-1] if found else None  # The latest use is listed first.

    def _reached(
        self, value: SSAValue, kept: frozenset[str]
    ) -> Iterator[tuple[Operation, int]]:
        """
        Yields the uses of `value`, each as an op and an operand index. Values that hold
        the same elements are followed through calls, communication, and ops whose names
        are in `kept`.
        """
        pending, seen = [value], {value}
        while pending:
            current = pending.pop()
            for use in current.uses:
                yield use.operation, use.index
                for target in self._same_values(use.operation, use.index, kept):
                    if target not in seen:
                        seen.add(target)
                        pending.append(target)

    def _same_values(
        self, op: Operation, index: int, kept: frozenset[str]
    ) -> Iterable[SSAValue]:
        """
        Returns the values that consist of elements of operand `index` of `op`: all or
        some of the elements, in any order. Ops of `onnx` are followed only if their
        names are in `kept`.
        """
        if isinstance(op, CallOp):
            callee = self._functions.get(op.callee.string_value())
            return [] if callee is None else [callee.body.block.args[index]]
        if isinstance(op, ReturnOp):
            function = op.parent_op()
            assert isinstance(function, FuncOp)
            calls = self._calls.get(function.sym_name.data, [])
            return [call.results[index] for call in calls]
        if op.dialect_name() in ("collective", "dist"):
            return op.results
        if op.name not in kept or not isinstance(op, OnnxOp):
            return []
        if op.name == "onnx.Gather" and op.operand_position(index) != 0:
            return []
        if op.name == _SELECTS and op.operand_position(index) == 0:
            return []
        return op.results


def _lookup(op: Operation, index: int) -> Lookup | None:
    entries = ENTRIES.of(op.attributes)
    if isinstance(op, CrossEntropyOp) and index == 1:
        return Lookup(op, entries or shape_of(op.logits)[-1], 0, op.ignored)
    if isinstance(op, CrossEntropySumOp) and index == 3:
        return Lookup(op, op.count, 0, op.ignored)
    if not isinstance(op, OnnxOp):
        return None
    position = op.operand_position(index)
    if op.name == "onnx.Mod" and position == 0 and entries is not None:
        return Lookup(op, entries, -entries)
    if op.name == "onnx.OneHot" and position == 0:
        depth = op.operands[1].owner
        if isinstance(depth, OnnxOp) and depth.name == "onnx.Constant":
            size = int(np.asarray(depth.attribute("value")).reshape(-1)[0])
            return Lookup(op, size, checked=False)
        return None
    if op.name in ("onnx.GatherND", "onnx.ScatterND") and position == 1:
        table = op.operands[0].type
        first = op.attribute("batch_dims") if op.name == "onnx.GatherND" else 0
        if not isinstance(table, TensorType):
            return None
        return Lookup(op, min(table.get_shape()[first:]), checked=False)
    if op.name not in LOOK_UPS or position != 1:
        return None
    table = op.operands[0].type
    if not isinstance(table, TensorType) or not table.get_num_dims():
        return None
    is_loss = "axis" not in op.SCHEMA.attributes
    size = table.get_shape()[1 if is_loss else op.attribute("axis")]
    if size < 0:
        return None
    if is_loss:
        return Lookup(op, size, 0, op.attribute("ignore_index"))
    return Lookup(op, size, -size)
