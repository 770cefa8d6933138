"""
Writes the collectives of one program for all ranks as ops of MLIR's `shard` dialect.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import shard
from xdsl.dialects.builtin import (
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    UnitAttr,
    i16,
    i64,
)
from xdsl.ir import Attribute, Operation
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops import kinds
from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.spmd_form import (
    InSpmdForm,
    RankCountOp,
    ThisRankOp,
)
from distir.dialects.device import MeshOp
from distir.dialects.dist_attributes import SCOPE
from distir.errors import DistIRError
from distir.program import describe, functions
from distir.program.rewriting import erase_dead
from distir.sharding.mesh import Mesh, meshes
from distir.transforms.projection import MESH


def to_shard(module: ModuleOp) -> None:
    """
    Replaces the collectives of a program for all ranks by ops of the `shard` dialect,
    and adds a `shard.grid` for each mesh in use. An all-reduce becomes
    `shard.all_reduce`, and a ring shift becomes `shard.shift` with `rotate`. Values
    that were used only to compute groups are removed. Raises DistIRError for a
    collective without an op in xDSL's `shard` dialect, and if a value other than a
    group depends on the number of the rank.
    """
    known = meshes(module)
    used: dict[str, Mesh] = {}
    for function in functions(module).values():
        for op in list(function.walk()):
            if isinstance(op, InSpmdForm):
                mesh = mesh_of(op, known, "collective-to-shard")
                used[mesh.name] = mesh
                _replace(op, mesh)
        if not function.is_declaration:
            erase_dead(function.body.block)
        for kind in (CollectiveOp, ThisRankOp, RankCountOp):
            left = [op for op in function.walk() if isinstance(op, kind)]
            if left:
                raise DistIRError(_refusal(left[0]))
    for op in list(module.body.block.ops):
        if isinstance(op, MeshOp) and op.sym_name.data in used:
            sizes = [size for _, size in op.axes.data]
            shape = DenseArrayBase.from_list(i64, sizes)
            grid = shard.GridOp.build(
                properties={"sym_name": StringAttr(_grid(op)), "shape": shape}
            )
            Rewriter.insert_op(grid, InsertPoint.after(op))


def _grid(mesh: MeshOp | Mesh) -> str:
    """Returns the name of the grid that has the axes of the mesh `mesh`."""
    name = mesh.name if isinstance(mesh, Mesh) else mesh.sym_name.data
    return f"{name}_grid"


def _replace(op: InSpmdForm, mesh: Mesh) -> None:
    """Replaces `op` by an op of the `shard` dialect, if the dialect has such an op."""
    axes = [mesh.position_of_axis(axis) for axis in op.axis_names]
    properties: dict[str, Attribute] = {
        "grid": SymbolRefAttr(_grid(mesh)),
        "grid_axes": DenseArrayBase.from_list(i16, axes),
    }
    new: Operation
    if isinstance(op, kinds.AllReduce) and op.reduction_name is not None:
        kind = shard.ReductionKind(op.reduction_name)
        properties["reduction"] = shard.ReductionKindAttr(kind)
        new = shard.AllReduceOp.create(
            operands=[op.source], result_types=[op.result.type], properties=properties
        )
    elif isinstance(op, kinds.Permute):
        shift = op.number("shift")
        properties |= {
            "shift_axis": IntegerAttr(axes[0], IndexType()),
            "offset": IntegerAttr(1 if shift is None else shift, i64),
            "rotate": UnitAttr(),
        }
        new = shard.ShiftOp.create(
            operands=[op.source], result_types=[op.result.type], properties=properties
        )
    else:
        return
    new.location = op.location
    if SCOPE in op.attributes:
        new.attributes[SCOPE] = op.attributes[SCOPE]
    new.results[0].name_hint = op.result.name_hint
    Rewriter.insert_op(new, InsertPoint.before(op))
    op.result.replace_all_uses_with(new.results[0])
    Rewriter.erase_op(op)


def mesh_of(op: InSpmdForm, known: Mapping[str, Mesh], used_by: str) -> Mesh:
    """
    Returns the mesh of a collective in a program for all ranks. Raises DistIRError if
    the module lacks the mesh; the error's message begins with `used_by`, the name of
    the pass.
    """
    name = op.attributes.get(MESH)
    if not isinstance(name, SymbolRefAttr) or name.string_value() not in known:
        raise DistIRError(
            f"{used_by}: {describe(op)} names no device.mesh of the module in "
            f"its attribute `{MESH}`; run project{{spmd}}, which adds it"
        )
    return known[name.string_value()]


def _refusal(op: Operation) -> str:
    if not isinstance(op, InSpmdForm | ThisRankOp | RankCountOp):
        return (
            f"collective-to-shard: {describe(op)} is not of one program for all ranks; "
            f"run project{{spmd}} before"
        )
    return (
        f"collective-to-shard: {describe(op)} has no op in xDSL's shard dialect, which "
        f"has those for all_reduce and permute; distribute the program so that it needs "
        f"no other, or lower it to PyTorch (distir-opt -t torch)"
    )
