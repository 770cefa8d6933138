"""Finds the pipeline's values that correspond to values of the original program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import Layout, LayoutAttr, ReshardOp, layout_of
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import constant_attr, element_type_of_dtype
from distir.errors import DistIRError
from distir.program import called, describe, made_with
from distir.sharding.placement import REPLICATED, PartialPlacement, SplitPlacement
from distir.transforms.pipelines.entry import Entry, V
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.over_time import over_time, split_over_time
from distir.transforms.pipelines.structure import Structure


class MicroBatchValues(Generic[V]):
    """
    Finds values of the pipeline, and adds the ops to `entry` that send them to other
    meshes. A value is identified by the original value, the index of the micro-batch
    (None for all micro-batches together) and its mesh. A value is sent to a mesh at
    most once, from the mesh that had the value first. With `asynchronous`, devices can
    compute while they send.
    """

    def __init__(
        self, structure: Structure, fold: Fold, entry: Entry[V], *, asynchronous: bool
    ):
        self.structure = structure
        self.fold = fold
        self.entry = entry
        self.asynchronous = asynchronous
        self.sums: dict[int, V] = {}
        """
        The values accumulated over the micro-batches so far, by the id of the original
        value.
        """
        self.number_of = structure.number_of
        self._here: dict[tuple[int | None, str], dict[int, V]] = {}
        self._meshes: dict[int, str] = {}
        self._one = structure.shared
        self._batch_numbers: dict[tuple[int, str], V] = {}

    def here(self, batch: int | None, mesh: str) -> dict[int, V]:
        """
        Returns the values of a micro-batch on a mesh, by the ids of the original
        values. `batch` is the index of the micro-batch, or None for all micro-batches
        together.
        """
        return self._here.setdefault((batch, mesh), {})

    def settle(self, value: SSAValue, mesh: str) -> None:
        """
        Records `mesh` as the mesh on which the original value `value` first becomes
        available. Does nothing if a mesh is already recorded.
        """
        self._meshes.setdefault(self.number_of(value), mesh)

    def store(self, value: SSAValue, batch: int | None, mesh: str, new: V) -> None:
        """
        Records that `new` is the pipeline's value on `mesh` for the original value
        `value` and the micro-batch `batch`.
        """
        number = self.number_of(value)
        self.entry.name(new, value.name_hint)
        self.here(batch, mesh)[number] = new
        self._meshes.setdefault(number, mesh)

    def find(self, value: SSAValue, batch: int | None, mesh: str) -> V:
        """
        Returns the pipeline's value on `mesh` for the original value `value`. The value
        is sent to `mesh` first if necessary.
        """
        number = self.number_of(value)
        if batch is not None and self._is_one(value, number):
            batch = None
        here = self.here(batch, mesh)
        found = here.get(number)
        if found is None:
            self.store(value, batch, mesh, self._bring(value, batch, mesh))
            found = here[number]
        return found

    def mesh_of(self, value: SSAValue) -> str | None:
        """
        Returns the mesh on which a value first becomes available, or None if every mesh
        can compute the value.
        """
        return self._meshes.get(self.number_of(value))

    def _bring(self, value: SSAValue, batch: int | None, mesh: str) -> V:
        owner, time = value.owner, over_time(value)
        kind = self.structure.kinds[owner] if isinstance(owner, Operation) else None
        number, own = self.number_of(value), self.mesh_of(value)
        if own is not None and kind is not Kind.BEFORE:
            there = self.here(batch, own)
            if number in there:
                whole = batch is None
                convert = self.fold.whole_type if whole else self.fold.type
                return self.send(there[number], convert(value.type, mesh))
        if batch is not None:
            return self._part(value, batch, mesh)
        if isinstance(owner, Operation) and kind in (Kind.BEFORE, Kind.DIVIDE):
            self._compute(owner, mesh)
            return self.here(None, mesh)[number]
        if isinstance(time, PartialPlacement):
            return self.send(self.sums[number], self.fold.type(value.type, mesh))
        if isinstance(time, SplitPlacement):
            joined_on = self._meshes[number]
            self.store(value, None, joined_on, self._join(value, joined_on))
            return self.find(value, None, mesh)
        # The same for all micro-batches.
        return self.find(value, 0, mesh)

    def _is_one(self, value: SSAValue, number: int) -> bool:
        """Whether `value` is the same for all micro-batches."""
        found = self._one.get(number)
        if found is None:
            owner = value.owner
            kind = self.structure.kinds[owner] if isinstance(owner, Operation) else None
            whole = over_time(value) is REPLICATED
            found = self._one[number] = whole and kind is not Kind.EACH
        return found

    def send(self, value: V, type_: Attribute) -> V:
        """
        Returns `value` on the mesh of `type_`, sent there if it is on another mesh.
        """
        here, there = layout_of(self.entry.type_of(value)), layout_of(type_)
        assert here is not None and there is not None
        if here.mesh == there.mesh:
            return value
        return self.entry.send(value, type_, asynchronous=self.asynchronous)

    def compute_whole(self, op: Operation, mesh: str) -> None:
        """Computes `op` once, on operands of all micro-batches together."""
        operands = [self.find(v, None, mesh) for v in op.operands]
        types = [self.fold.whole_type(r.type, mesh) for r in op.results]
        if isinstance(op, ReshardOp) and self.entry.type_of(operands[0]) == types[0]:
            self.store(op.result, None, mesh, operands[0])
            return

        def make(given: Sequence[SSAValue]) -> Sequence[Operation]:
            if isinstance(op, CallOp):
                name, _ = self.fold.function(op.callee.string_value(), mesh)
                return [called(op, name, given, types)]
            return [made_with(op, given, types)]

        results = self.entry.op(make, operands)
        for old, new in zip(op.results, results, strict=True):
            self.store(old, None, mesh, new)

    def _compute(self, op: Operation, mesh: str) -> None:
        """Computes `op`, and the ops on which it depends, before the micro-batches."""
        here, number_of = self.here(None, mesh), self.number_of
        pending = [op]
        while pending:
            current = pending[-1]
            missing = [
                owner
                for v in current.operands
                if isinstance(owner := v.owner, Operation)
                and self.structure.kinds[owner] is Kind.BEFORE
                and number_of(v) not in here
            ]
            if missing:
                pending += missing
                continue
            pending.pop()
            if number_of(current.results[0]) not in here:
                self.compute_whole(current, mesh)

    def _part(self, value: SSAValue, batch: int, mesh: str) -> V:
        """
        Returns the part of a whole value or an argument that belongs to one
        micro-batch.
        """
        own = mesh
        if not isinstance(value.owner, Operation):
            own = self._meshes[self.number_of(value)]
        whole = self.find(value, None, own)
        count = self.structure.micro_batches
        parts: Sequence[V] = [whole]
        if count > 1:
            axis = self._axis(value)
            part = self.fold.type(value.type, own)
            assert isinstance(part, TensorType)
            sizes = np.full(count, part.get_shape()[axis], dtype=np.int64)

            def split(given: Sequence[SSAValue]) -> Sequence[Operation]:
                types = [part] * count
                return [operator("Split").build_op(given, types, {"axis": axis})]

            operands = [whole, self._constant(sizes, own)]
            parts = self.entry.op(split, operands)
        for number, new in enumerate(parts):
            self.store(value, number, own, new)
        return self.find(value, batch, mesh)

    def _join(self, value: SSAValue, mesh: str) -> V:
        """Returns the concatenation of the parts of all micro-batches."""
        count, known = self.structure.micro_batches, self.number_of(value)
        parts = [self.here(number, mesh)[known] for number in range(count)]
        if count == 1:
            return parts[0]
        whole = self.fold.whole_type(value.type, mesh)
        axis = self._axis(value)

        def concat(given: Sequence[SSAValue]) -> Sequence[Operation]:
            return [operator("Concat").build_op(given, [whole], {"axis": axis})]

        return self.entry.op(concat, parts)[0]

    def _axis(self, value: SSAValue) -> int:
        """
        Returns the dimension of `value` that is split into micro-batches. Raises
        DistIRError if the dimension is split in runs, so that micro-batches alternate.
        """
        placement = split_over_time(value)
        if placement.run is not None:
            owner = value.owner
            what = describe(owner) if isinstance(owner, Operation) else "an argument"
            raise DistIRError(
                f"pipeline: the micro-batches of {what} lie between each other, in runs "
                f"of {placement.run} along dimension {placement.dim}; keep the batch "
                f"apart from other dimensions in what leaves the program"
            )
        return placement.dim

    def _constant(self, array: npt.NDArray[Any], mesh: str) -> V:
        type_ = TensorType(
            element_type_of_dtype(array.dtype), array.shape, LayoutAttr(Layout(mesh))
        )

        def constant(given: Sequence[SSAValue]) -> Sequence[Operation]:
            attributes = {"value": constant_attr(array)}
            return [operator("Constant").build_op(given, [type_], attributes)]

        return self.entry.op(constant, [])[0]

    def number(self, number: int, mesh: str) -> V:
        """
        Returns the index of a micro-batch as a value, for functions that take the
        index.
        """
        if (number, mesh) not in self._batch_numbers:
            value = self._constant(np.array(number, dtype=np.int64), mesh)
            self._batch_numbers[number, mesh] = value
        return self._batch_numbers[number, mesh]
