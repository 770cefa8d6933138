"""Projects a collective to the program of one device."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from distir.dialects.collective_ops.distributed import InDistributedForm
from distir.dialects.collective_ops.kinds import ExchangeKind
from distir.dialects.collective_ops.rank_form import RANK_OPS, InRankForm
from distir.dialects.dist import Layout, layout_of
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import constant_attr, numpy_dtype
from distir.errors import DistIRError
from distir.program import describe
from distir.sharding.layout import joint_split, local_type
from distir.sharding.mesh import Mesh


def layouts_around(op: Operation) -> tuple[Layout, Layout]:
    """
    Returns the layouts of the first operand and the first result of `op`. Raises
    DistIRError if one of them has no layout.
    """
    before, after = layout_of(op.operands[0]), layout_of(op.results[0])
    if before is None or after is None:
        raise DistIRError(f"{describe(op)} needs a #dist.layout on both sides")
    return before, after


def per_rank_collective(
    op: InDistributedForm,
    source: SSAValue,
    rank: int,
    mesh: Mesh,
    known: Mapping[str, Mesh],
) -> InRankForm:
    """
    Returns the collective `op` for the device `rank` of `mesh`. `source` is the
    device's part of the operand. The new op states its group and all other facts that
    local types do not show. `known` has the program's meshes by name. Raises
    DistIRError if the layouts need more than one collective.
    """
    before, after = layouts_around(op)
    assert isinstance(op.source.type, TensorType)
    joined: int | None = None
    split: int | None = None
    for i in range(op.source.type.get_num_dims()):
        if len(before.dim(i)) > len(after.dim(i)):
            joined = i
        elif len(before.dim(i)) < len(after.dim(i)):
            split = i
    gathered = _parts_along(op, before, joined, known)
    parted = _parts_along(op, after, split, known)
    if joined is None:
        numbers = parted
    else:
        numbers = gathered | {f"split_{name}": n for name, n in parted.items()}
    reductions = dict(before.partial)
    reduced = [reductions[a] for a in op.axis_names if a in reductions]
    new = RANK_OPS[op.kind].of(
        source,
        op.axis_names,
        local_type(op.result.type, known),
        mesh.group(rank, op.axis_names),
        reduction=reduced[0] if op.REDUCES else None,
        **numbers,
    )
    new.attributes.update(op.attributes)
    own = {n: p for n, p in op.properties.items() if n not in new.properties}
    new.properties.update(own)
    return new


def _parts_along(
    op: InDistributedForm,
    layout: Layout,
    dim: int | None,
    known: Mapping[str, Mesh],
) -> dict[str, int | None]:
    """
    Returns properties, by name, that describe how the axes of `op` split the dimension
    `dim`: the dimension, the number of consecutive elements of each part, and the
    number of blocks if there are several (see `Exchanging`). The axes must be the
    innermost axes that split `dim` in `layout`. Returns an empty dictionary if `dim` is
    None. Raises DistIRError if one collective of this kind cannot join or split the
    parts.
    """
    if dim is None:
        return {}
    count = len(op.axis_names)
    mesh = known[layout.mesh]
    shards = layout.dim(dim)
    outer = prod(mesh.size(s.axis) for s in shards[:-count])
    assert isinstance(op.source.type, TensorType)
    size = op.source.type.get_shape()[dim] // outer
    try:
        blocks, run = joint_split(size, shards[-count:], mesh)
        if blocks > 1 and not isinstance(op, ExchangeKind):
            raise ValueError("only exchanges join blocks")
    except ValueError as error:
        raise DistIRError(
            f"{describe(op)}: dimension {dim} of {layout} is split over "
            f"{', '.join(op.axis_names)} with run lengths that do not nest, which "
            f"one collective cannot do; use one collective per axis"
        ) from error
    return {"dim": dim, "run": run} | ({"blocks": blocks} if blocks > 1 else {})


def placeholder(type_: TensorType) -> Operation:
    """
    Returns a constant of zeros with the type `type_`. A device that takes part in a
    collective but has no operand passes this constant.
    """
    zeros = np.zeros(type_.get_shape(), numpy_dtype(type_.element_type))
    return operator("Constant").build_op([], [type_], {"value": constant_attr(zeros)})
