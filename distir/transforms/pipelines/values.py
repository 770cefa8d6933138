"""The values of the program that is built, by the values of the program before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.dialects.func import CallOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import (
    ASYNCHRONOUS,
    Layout,
    LayoutAttr,
    ReshardOp,
    SendOp,
    layout_of,
)
from distir.dialects.onnx import operator
from distir.dialects.onnx_values import constant_attr, element_type_of_dtype
from distir.errors import DistIRError
from distir.program import called, describe, made_with
from distir.transforms.pipelines.entry import Entry
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.over_time import over_time
from distir.transforms.pipelines.structure import Structure


class MicroBatchValues:
    """
    Finds values, and adds ops to `entry` that bring them where they are needed.

    A value is known by the value before, the number of the micro-batch (None for all of
    them together) and the mesh it is on. It is sent to another mesh once, from the one it
    was first on. With `asynchronous`, a send leaves the devices free to compute meanwhile.
    """

    def __init__(
        self, structure: Structure, fold: Fold, entry: Entry, *, asynchronous: bool
    ):
        self.structure = structure
        self.fold = fold
        self.entry = entry
        self.asynchronous = asynchronous
        self.sums: dict[SSAValue, SSAValue] = {}
        """What the micro-batches so far add up to, where it is added up."""
        self._here: dict[tuple[SSAValue, int | None, str], SSAValue] = {}
        self._home: dict[tuple[SSAValue, int | None], str] = {}
        self._one: dict[SSAValue, bool] = {}
        self._numbers: dict[tuple[int, str], SSAValue] = {}

    def store(
        self, value: SSAValue, batch: int | None, mesh: str, new: SSAValue
    ) -> None:
        """Remembers what a value is now."""
        if new.name_hint is None:
            new.name_hint = value.name_hint
        self._here[value, batch, mesh] = new
        self._home.setdefault((value, batch), mesh)

    def find(self, value: SSAValue, batch: int | None, mesh: str) -> SSAValue:
        """A value on a mesh, brought there if it is not there yet."""
        if batch is not None and self._is_one(value):
            batch = None
        key = (value, batch, mesh)
        if key not in self._here:
            self.store(*key, self._bring(value, batch, mesh))
        return self._here[key]

    def home(self, value: SSAValue) -> str | None:
        """The mesh that a value is first on; None for one that can be had on any."""
        return self._home.get((value, None)) or self._home.get((value, 0))

    def _bring(self, value: SSAValue, batch: int | None, mesh: str) -> SSAValue:
        owner, time = value.owner, over_time(value).kind
        kind = self.structure.kinds[owner] if isinstance(owner, Operation) else None
        home = self._home.get((value, batch))
        if home is not None and kind is not Kind.BEFORE:
            return self.send(self._here[value, batch, home], mesh)
        if batch is not None:
            return self._part(value, batch, mesh)
        if isinstance(owner, Operation) and kind in (Kind.BEFORE, Kind.DIVIDE):
            self._compute(owner, mesh)
            return self._here[value, None, mesh]
        if time == "partial":
            return self.send(self.sums[value], mesh)
        joined_on = self._home[value, 0]
        if time == "split":
            self.store(value, None, joined_on, self._join(value, joined_on))
            return self.find(value, None, mesh)
        # The same for all micro-batches.
        return self.find(value, 0, mesh)

    def _is_one(self, value: SSAValue) -> bool:
        """Whether the micro-batches share a value, rather than have one each."""
        if value not in self._one:
            owner = value.owner
            kind = self.structure.kinds[owner] if isinstance(owner, Operation) else None
            whole = over_time(value).kind == "whole"
            self._one[value] = whole and kind is not Kind.EACH
        return self._one[value]

    def add(self, op: Operation) -> SSAValue:
        """Adds an op to the program and gives its first result."""
        self.entry.add(op)
        return op.results[0]

    def send(self, value: SSAValue, mesh: str) -> SSAValue:
        """A value of the program on another mesh."""
        layout = layout_of(value)
        assert layout is not None and isinstance(value.type, TensorType)
        if layout.mesh == mesh:
            return value
        send = SendOp.create(
            operands=[value],
            result_types=[self.fold.moved_type(value.type, mesh)],
            attributes={ASYNCHRONOUS: UnitAttr()} if self.asynchronous else {},
        )
        send.result.name_hint = value.name_hint
        return self.add(send)

    def compute_whole(self, op: Operation, mesh: str) -> None:
        """Computes an op once, on operands of all micro-batches together."""
        operands = [self.find(v, None, mesh) for v in op.operands]
        types = [self.fold.whole_type(r.type, mesh) for r in op.results]
        if isinstance(op, ReshardOp) and operands[0].type == types[0]:
            self.store(op.result, None, mesh, operands[0])
            return
        if isinstance(op, CallOp):
            name, _ = self.fold.function(op.callee.string_value(), mesh)
            made: Operation = called(op, name, operands, types)
        else:
            made = made_with(op, operands, types)
        self.entry.add(made)
        for old, new in zip(op.results, made.results, strict=True):
            self.store(old, None, mesh, new)

    def _compute(self, op: Operation, mesh: str) -> None:
        """Computes an op before the micro-batches, after those that it needs."""
        pending = [op]
        while pending:
            current = pending[-1]
            missing = [
                owner
                for v in current.operands
                if isinstance(owner := v.owner, Operation)
                and self.structure.kinds[owner] is Kind.BEFORE
                and (v, None, mesh) not in self._here
            ]
            if missing:
                pending += missing
                continue
            pending.pop()
            if (current.results[0], None, mesh) not in self._here:
                self.compute_whole(current, mesh)

    def _part(self, value: SSAValue, batch: int, mesh: str) -> SSAValue:
        """The part of a whole value or an argument that belongs to a micro-batch."""
        home = mesh if isinstance(value.owner, Operation) else self._home[value, None]
        whole = self.find(value, None, home)
        count = self.structure.micro_batches
        parts: Sequence[SSAValue] = [whole]
        if count > 1:
            axis = self._axis(value)
            part = self.fold.type(value.type, home)
            assert isinstance(part, TensorType)
            sizes = np.full(count, part.get_shape()[axis], dtype=np.int64)
            split = operator("Split").build_op(
                [whole, self._constant(sizes, home)], [part] * count, {"axis": axis}
            )
            self.entry.add(split)
            parts = split.results
        for number, new in enumerate(parts):
            self.store(value, number, home, new)
        return self.find(value, batch, mesh)

    def _join(self, value: SSAValue, mesh: str) -> SSAValue:
        """The parts of all micro-batches together."""
        count = self.structure.micro_batches
        parts = [self._here[value, number, mesh] for number in range(count)]
        if count == 1:
            return parts[0]
        whole = self.fold.whole_type(value.type, mesh)
        axis = self._axis(value)
        return self.add(operator("Concat").build_op(parts, [whole], {"axis": axis}))

    def _axis(self, value: SSAValue) -> int:
        """The dimension that falls into micro-batches."""
        placement = over_time(value)
        if placement.run is not None:
            owner = value.owner
            what = describe(owner) if isinstance(owner, Operation) else "an argument"
            raise DistIRError(
                f"pipeline: the micro-batches of {what} lie between each other, in runs "
                f"of {placement.run} along dimension {placement.dim}; keep the batch "
                f"apart from other dimensions in what leaves the program"
            )
        return placement.dim

    def _constant(self, array: npt.NDArray[Any], mesh: str) -> SSAValue:
        type_ = TensorType(
            element_type_of_dtype(array.dtype), array.shape, LayoutAttr(Layout(mesh))
        )
        return self.add(
            operator("Constant").build_op([], [type_], {"value": constant_attr(array)})
        )

    def number(self, number: int, mesh: str) -> SSAValue:
        """The number of a micro-batch, for functions that take it."""
        if (number, mesh) not in self._numbers:
            value = self._constant(np.array(number, dtype=np.int64), mesh)
            self._numbers[number, mesh] = value
        return self._numbers[number, mesh]
