"""Runs one program for all ranks. Each op runs on all ranks before the next op runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.interpreter import PythonValues
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.collective_ops.spmd_form import (
    InSpmdForm,
    RankCountOp,
    ThisRankOp,
)
from distir.dialects.dist import LAYOUT, Layout, LayoutAttr, Shard
from distir.errors import DistIRError
from distir.interpreters.sharded import Array, Sharded, mesh_of
from distir.program import (
    argument_attributes,
    describe,
    functions,
    result_attributes,
)
from distir.program.source_forms import SourceForm, source_form_of
from distir.sharding.layout import COMBINE, assemble, take_shard
from distir.sharding.mesh import Mesh, meshes

RunOp = Callable[[Operation, PythonValues], PythonValues]


def is_for_all_ranks(module: ModuleOp) -> bool:
    """Whether a module is one program for all ranks (`project{spmd}`)."""
    kinds = (InSpmdForm, ThisRankOp, RankCountOp)
    return any(isinstance(op, kinds) for op in module.walk())


def runner_for_all_ranks(
    module: ModuleOp, function: FuncOp, run_op: RunOp
) -> Callable[[Sequence[Any]], list[Any]]:
    """
    Returns a function that runs `function`, of one program for all ranks, on all
    devices of its mesh. The returned function takes and returns global arrays, in the
    shapes of the source model; `dist.layout` of arguments and results divides the
    arrays among the ranks. `run_op` runs one op on one rank.

    Raises DistIRError if an argument or result has no layout. The returned function
    raises DistIRError if its arguments do not fit, or if the ranks of a group do not
    agree.
    """
    types = function.function_type
    known = meshes(module)
    given, returned = (
        [_Whole.of(t, own, known) for t, own in zip(own_types, attributes, strict=True)]
        for own_types, attributes in (
            (types.inputs.data, argument_attributes(function)),
            (types.outputs.data, result_attributes(function)),
        )
    )
    if not given and not returned:
        raise DistIRError(
            f"@{function.sym_name.data} has neither arguments nor results, which say on "
            f"which mesh it runs"
        )
    mesh = (given or returned)[0].mesh

    def run(arguments: Sequence[Any]) -> list[Any]:
        if len(arguments) != len(given):
            raise DistIRError(
                f"@{function.sym_name.data} takes {len(given)} arguments, got "
                f"{len(arguments)}"
            )
        shards = [own.taken(x) for own, x in zip(given, arguments, strict=True)]
        results = _Run(module, run_op, len(mesh.devices)).call(function, shards)
        return [own.joined(x) for own, x in zip(returned, results, strict=True)]

    return run


@dataclass(frozen=True)
class _Whole:
    """
    An argument or a result as a whole: its global shape, layout, mesh and form in the
    source model.
    """

    shape: tuple[int, ...]
    layout: Layout
    mesh: Mesh
    form: SourceForm | None

    @staticmethod
    def of(
        type_: Attribute,
        attributes: Mapping[str, Attribute],
        known: Mapping[str, Mesh],
    ) -> _Whole:
        found = attributes.get(LAYOUT)
        if not isinstance(found, LayoutAttr) or not isinstance(type_, TensorType):
            raise DistIRError(
                f"an argument or result {type_} of the program for all ranks has no "
                f"{LAYOUT}, which says the part of each rank"
            )
        layout, mesh = found.data, mesh_of(found.data, known)
        shape = tuple(
            n * prod(mesh.size(s.axis) for s in layout.dim(i))
            for i, n in enumerate(type_.get_shape())
        )
        whole = TensorType(type_.element_type, shape)
        return _Whole(shape, layout, mesh, source_form_of(whole, dict(attributes)))

    def taken(self, value: Any) -> list[Array]:
        """
        Returns the parts of `value` on each rank. `value` is in the form of the source
        model.
        """
        array = np.asarray(value)
        if self.form is not None:
            array = self.form.stored(array)
        if array.shape != self.shape:
            raise DistIRError(
                f"an argument has shape {list(array.shape)}, but the program takes "
                f"{list(self.shape)}"
            )
        return [
            take_shard(array, self.layout, self.mesh, c) for c in self.mesh.coordinates
        ]

    def joined(self, shards: Sequence[Any]) -> Any:
        """
        Returns the value in the form of the source model, joined from the parts of all
        ranks.
        """
        parts = tuple(map(np.asarray, shards))
        value = Sharded(parts, self.shape, self.layout, self.mesh)
        value.check("a result")
        whole = value.assemble()
        return whole if self.form is None else self.form.source(whole)


class _Run:
    """
    A run on `count` ranks. A value of a function is represented by a list with one
    entry per rank.
    """

    def __init__(self, module: ModuleOp, run_op: RunOp, count: int):
        self.functions = functions(module)
        self.run_op = run_op
        self.count = count

    def call(
        self, function: FuncOp, arguments: Sequence[Sequence[Any]]
    ) -> list[Sequence[Any]]:
        """Runs a function and returns its results."""
        env: dict[SSAValue, Sequence[Any]] = dict(
            zip(function.args, arguments, strict=True)
        )
        for op in function.body.block.ops:
            operands = [env[v] for v in op.operands]
            if isinstance(op, ReturnOp):
                return operands
            for result, values in zip(op.results, self._run(op, operands), strict=True):
                env[result] = values
        raise DistIRError(f"@{function.sym_name.data} has no func.return")

    def _run(
        self, op: Operation, operands: Sequence[Sequence[Any]]
    ) -> Sequence[Sequence[Any]]:
        ranks = range(self.count)
        match op:
            case CallOp():
                return self.call(self.functions[op.callee.string_value()], operands)
            case ThisRankOp():
                return [[np.array(rank, np.int64) for rank in ranks]]
            case RankCountOp():
                return [[np.array(self.count, np.int64)] * self.count]
            case InSpmdForm():
                return [self._collective(op, *operands)]
            case _:
                each = [self.run_op(op, tuple(v[r] for v in operands)) for r in ranks]
                return list(zip(*each, strict=True))

    def _collective(
        self, op: InSpmdForm, source: Sequence[Array], groups: Sequence[Array]
    ) -> list[Array]:
        results: list[Array] = []
        for rank in range(self.count):
            group = [int(r) for r in groups[rank]]
            if rank not in group or any(list(groups[r]) != group for r in group):
                raise DistIRError(
                    f"{describe(op)}: rank {rank} computes the group {group}, and other "
                    f"ranks of it do not"
                )
            shards = [source[r] for r in group]
            results.append(_result(op, shards, group.index(rank)))
        return results


def _result(op: InSpmdForm, shards: Sequence[Array], position: int) -> Array:
    """
    Returns the result of a collective on the rank at index `position` of its group.
    `shards` holds the operands of all ranks of the group.
    """
    ranks = len(shards)

    def line(split: str) -> Mesh:
        blocks = op.number(f"{split}blocks") or 1
        axes = (("b", blocks), ("g", ranks // blocks))
        return Mesh("group", axes, tuple(range(ranks)))

    def layout(split: str) -> Layout:
        at = op.number(f"{split}dim")
        assert at is not None
        parts = (Shard("b"), Shard("g", op.number(f"{split}run")))
        return Layout("group").with_dim(at, parts, shards[0].ndim)

    def gathered() -> Array:
        at = op.number("dim")
        shape = [n * ranks if i == at else n for i, n in enumerate(shards[0].shape)]
        return assemble(shards, tuple(shape), layout(""), line(""))

    def own_part(whole: Array, split: str = "") -> Array:
        mesh = line(split)
        return take_shard(whole, layout(split), mesh, mesh.coordinates[position])

    def reduced() -> Array:
        assert op.reduction_name is not None
        return reduce(COMBINE[op.reduction_name], shards)

    match op.kind:
        case "all_reduce":
            return reduced()
        case "reduce_scatter":
            return own_part(reduced())
        case "all_gather":
            return gathered()
        case "all_to_all":
            return own_part(gathered(), "split_")
        case "slice":
            return own_part(shards[position])
        case _:
            shift = op.number("shift")
            return shards[(position - (1 if shift is None else shift)) % ranks]
