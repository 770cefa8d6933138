"""
Makes one program for all ranks from the programs of the ranks, which must all have the
same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, TensorType, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.base import is_per_rank
from distir.dialects.collective_ops.per_rank import CoordinateOp
from distir.dialects.collective_ops.rank_form import InRankForm
from distir.dialects.collective_ops.spmd_form import (
    SPMD_OPS,
    RankCountOp,
    ThisRankOp,
)
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import constant_attr
from distir.dialects.train_ops.opaque import OpaqueBase
from distir.dialects.train_ops.recurrent import GatheredOp
from distir.errors import DistIRError
from distir.program import describe, functions
from distir.program.functions import left_alone
from distir.sharding.mesh import Mesh, meshes
from distir.transforms.projection.program import devices_of, project


def project_for_all_ranks(module: ModuleOp) -> ModuleOp:
    """
    Returns one program that all ranks run, as a new module, with the local shapes of
    `project`. The number of the rank and the number of ranks are values
    (`collective.spmd.rank` and `collective.spmd.ranks`), and the program computes
    coordinates and groups from them. The size of the outermost mesh axis is not in the
    code: it follows from the number of ranks.

    Raises DistIRError if the ranks do not all run the same code, as in a pipeline, or
    if the devices of the mesh are not the ranks 0, 1, 2, ... in order.
    """
    mesh = _only_mesh(module)
    result = project(module, mesh.devices[0])
    # Projected functions hold no layouts any more, by which others would be told apart.
    alone = {f.sym_name.data for f in left_alone(module)}
    own = [f for n, f in functions(result).items() if n not in alone]
    for function in own:
        for op in function.walk():
            _check(op)
    for rank in mesh.devices[1:]:
        _check_same(result, project(module, rank), mesh, rank)
    for function in own:
        if not function.is_declaration:
            _FunctionForAllRanks(function, mesh).rewrite()
    return result


def _only_mesh(module: ModuleOp) -> Mesh:
    """Returns the mesh of all devices of the program."""
    devices = devices_of(module)
    # A sequential program has no mesh: every rank runs all of it.
    found = [m for m in meshes(module).values() if set(m.devices) <= set(devices)]
    whole = [m for m in found if set(m.devices) == set(devices)]
    if not whole:
        names = ", ".join(f"@{m.name}" for m in found) or "none"
        raise DistIRError(
            f"project{{spmd}}: the program runs on several meshes ({names}), whose ranks "
            f"run different code, as in a pipeline; use project{{rank=...}} for each rank"
        )
    (mesh, *_) = whole
    if mesh.devices != tuple(range(len(mesh.devices))):
        raise DistIRError(
            f"project{{spmd}}: mesh @{mesh.name} lists its devices in another order than "
            f"0, 1, 2, ..., so that coordinates do not follow from the number of a rank; "
            f"use project{{rank=...}} for each rank"
        )
    return mesh


def _check(op: Operation) -> None:
    """Raises DistIRError if an op of a rank's program is not the same on all ranks."""
    if isinstance(op, CoordinateOp):
        return
    communicates = isinstance(op, GatheredOp | OpaqueBase) and op.axes is not None
    is_known = isinstance(op, InRankForm) and op.kind in SPMD_OPS
    if communicates or (is_per_rank(op) and not is_known):
        raise DistIRError(
            f"project{{spmd}}: {describe(op)} has no form for all ranks; the collectives "
            f"that have one are {', '.join(SPMD_OPS)}; use project{{rank=...}} for each "
            f"rank"
        )
    if isinstance(op, InRankForm) and op.is_asynchronous:
        raise DistIRError(
            f"project{{spmd}}: {describe(op)} is asynchronous; distribute the program "
            f"without overlap, or use project{{rank=...}} for each rank"
        )


def _check_same(first: ModuleOp, other: ModuleOp, mesh: Mesh, rank: int) -> None:
    """
    Raises DistIRError unless `other`, the program of `rank`, equals `first`, the
    program of rank 0, apart from coordinates and groups, which must be those of `rank`.
    """
    pairs = zip(first.walk(), other.walk(), strict=False)
    for a, b in pairs:
        if isinstance(a, InRankForm) and isinstance(b, InRankForm):
            expected = mesh.group(rank, b.axis_names)
            if b.ranks == expected:
                b.properties["group"] = a.group
        if isinstance(a, CoordinateOp) and isinstance(b, CoordinateOp):
            b.properties["index"] = a.index
    if not first.is_structurally_equivalent(other):
        different = next(
            (
                a
                for a, b in zip(first.walk(), other.walk(), strict=False)
                if _differ(a, b)
            ),
            first,
        )
        raise DistIRError(
            f"project{{spmd}}: rank {rank} runs other code than rank 0 "
            f"({describe(different)}); use project{{rank=...}} for each rank"
        )


def _differ(a: Operation, b: Operation) -> bool:
    return (
        a.name != b.name
        or a.properties != b.properties
        or a.attributes != b.attributes
        or [v.type for v in (*a.operands, *a.results)]
        != [v.type for v in (*b.operands, *b.results)]
    )


@dataclass
class _FunctionForAllRanks:
    """
    Rewrites one function of rank 0's program into a function for all ranks.

    - `mesh`: the mesh of all ranks, in order;
    - `made`: the values that are computed at the beginning of the function, by a key for
      their computation;
    - `last`: the last op of the beginning of the function.
    """

    function: FuncOp
    mesh: Mesh
    made: dict[object, SSAValue] = field(default_factory=dict[object, SSAValue])
    last: Operation | None = None

    def rewrite(self) -> None:
        for op in list(self.function.body.block.ops):
            if isinstance(op, CoordinateOp):
                axes = tuple(a.data for a in op.axes.data)
                op.result.replace_all_uses_with(self.position(axes))
                Rewriter.erase_op(op)
            elif isinstance(op, InRankForm):
                self._replace(op)

    def _replace(self, op: InRankForm) -> None:
        properties = {n: p for n, p in op.properties.items() if n != "group"}
        new = SPMD_OPS[op.kind].create(
            operands=[op.source, self.group(op.axis_names)],
            result_types=[op.result.type],
            properties=properties,
            attributes=op.attributes,
            location=op.location,
        )
        new.results[0].name_hint = op.result.name_hint
        Rewriter.insert_op(new, InsertPoint.before(op))
        op.result.replace_all_uses_with(new.results[0])
        Rewriter.erase_op(op)

    def position(self, axes: Sequence[str]) -> SSAValue:
        """Returns this rank's position along `axes`, major axis first."""
        total = self.coordinate(axes[0])
        for axis in axes[1:]:
            scaled = self._onnx("Mul", total, self._constant(self.mesh.size(axis)))
            total = self._onnx("Add", scaled, self.coordinate(axis))
        return total

    def coordinate(self, axis: str) -> SSAValue:
        """Returns this rank's coordinate on `axis`: rank / stride modulo the size."""
        quotient, stride = self._rank(), self.mesh.stride(axis)
        if stride > 1:
            quotient = self._onnx("Div", quotient, self._constant(stride))
        if axis == self.mesh.axes[0][0]:
            return quotient
        return self._onnx("Mod", quotient, self._constant(self.mesh.size(axis)))

    def group(self, axes: Sequence[str]) -> SSAValue:
        """
        Returns the numbers of the ranks that differ from this rank only in their
        coordinates on `axes`. They are computed as the number of the first of these
        ranks plus the distance of each rank from the first.
        """
        first = self._rank()
        for axis in axes:
            own, stride = self.coordinate(axis), self.mesh.stride(axis)
            if stride > 1:
                own = self._onnx("Mul", own, self._constant(stride))
            first = self._onnx("Sub", first, own)
        outermost = self.mesh.axes[0][0]
        distances: SSAValue | None = None
        for axis in axes:
            if axis == outermost:
                zero, stride = self._constant(0), self._constant(self.mesh.stride(axis))
                along = self._onnx("Range", zero, self._ranks(), stride)
            else:
                numbers = np.arange(self.mesh.size(axis)) * self.mesh.stride(axis)
                along = self._constant(numbers)
            distances = along if distances is None else self._sums(distances, along)
        assert distances is not None
        return self._onnx("Add", first, distances)

    def _sums(self, major: SSAValue, minor: SSAValue) -> SSAValue:
        """
        Returns the sums of each number in `major` with each number in `minor`, as a
        list.
        """
        columns = self._onnx("Unsqueeze", major, self._constant([1]))
        table = self._onnx("Add", columns, minor)
        return self._onnx("Reshape", table, self._constant([-1]))

    def _rank(self) -> SSAValue:
        return self._number(ThisRankOp)

    def _ranks(self) -> SSAValue:
        return self._number(RankCountOp)

    def _number(self, kind: type[ThisRankOp] | type[RankCountOp]) -> SSAValue:
        if kind not in self.made:
            self.made[kind] = self._add(kind())
        return self.made[kind]

    def _constant(self, value: int | Sequence[int] | np.ndarray) -> SSAValue:
        array = np.asarray(value, dtype=np.int64)
        key = array.shape, tuple(array.reshape(-1).tolist())
        if key not in self.made:
            type_ = TensorType(i64, array.shape)
            attributes = {"value": constant_attr(array)}
            self.made[key] = self._add(
                operator("Constant").build_op([], [type_], attributes)
            )
        return self.made[key]

    def _onnx(self, name: str, *operands: SSAValue) -> SSAValue:
        key = name, operands
        if key not in self.made:
            shape = _shape(name, operands)
            type_ = TensorType(i64, [DYNAMIC_INDEX if n < 0 else n for n in shape])
            self.made[key] = self._add(operator(name).build_op(operands, [type_], {}))
        return self.made[key]

    def _add(self, op: Operation) -> SSAValue:
        """
        Adds an op at the beginning of the function, after the ops that are already
        there, and returns its result.
        """
        block = self.function.body.block
        assert isinstance(block, Block)
        if self.last is not None:
            block.insert_op_after(op, self.last)
        elif block.first_op is not None:
            block.insert_op_before(op, block.first_op)
        self.last = op
        return op.results[0]


def _shape(name: str, operands: Sequence[SSAValue]) -> list[int]:
    """
    Returns the shape of the result of an op on lists of ranks. A size that is known
    only when the program runs is -1.
    """
    shapes = [
        [max(n, -1) for n in v.type.get_shape()]
        for v in operands
        if isinstance(v.type, TensorType)
    ]
    if name == "Range":
        return [-1]
    if name == "Unsqueeze":
        return [*shapes[0], 1]
    if name == "Reshape":
        return [-1 if -1 in shapes[0] else prod(shapes[0])]
    rank = max(map(len, shapes))
    sizes = [[1] * (rank - len(s)) + s for s in shapes]
    return [-1 if -1 in own else max(own) for own in zip(*sizes, strict=True)]
