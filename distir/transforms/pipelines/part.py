"""Takes one micro-batch's part of a value that is the same for all micro-batches."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import ReshardOp, layout_of, with_layout
from distir.dialects.tensors import shape_of
from distir.sharding.mesh import Mesh
from distir.sharding.placement import SplitPlacement
from distir.transforms.pipelines.over_time import split_over_time
from distir.transforms.placed_ops import PlacedOps


class PartBuilder(PlacedOps):
    """Builds ops on a mesh, and changes layouts."""

    def resharded(self, value: SSAValue, type_: Attribute) -> SSAValue:
        """
        Returns the value with the layout of `type_`, through a reshard if it has another
        one.
        """
        if value.type == type_:
            return value
        assert isinstance(type_, TensorType)
        self.ops.append(ReshardOp(value, type_))
        return self.ops[-1].results[0]


def part_ops(
    source: SSAValue,
    target: Attribute,
    placement: SplitPlacement,
    count: int,
    number: SSAValue,
    mesh: Mesh,
) -> list[Operation]:
    """
    Returns the ops that take the part; the last one has it as its result. As a function
    serves all micro-batches, the position is given by the number of the micro-batch.

    - `placement`: how `source` is divided into `count` parts; `number`: which of them;
    - `target`: the type of the part; `mesh`: the mesh that both are on.
    """
    build = PartBuilder(mesh)
    shape, dim = shape_of(source.type), placement.dim
    run = placement.run or shape[dim] // count
    before, after = shape[:dim], shape[dim + 1 :]
    layout = layout_of(source)
    assert layout is not None and isinstance(source.type, TensorType)
    together = layout.with_dim(dim, (), len(shape))
    value = build.resharded(source, with_layout(source.type, together))
    # Along that dimension, the micro-batches' runs alternate.
    rounds = shape[dim] // (count * run)
    turns = (rounds,) if rounds > 1 else ()
    value = build.shaped("Reshape", value, (*before, *turns, count, run, *after))
    kept = (*before, *turns, run, *after)
    value = build.add("Gather", [value, number], kept, axis=dim + len(turns))
    if turns:
        value = build.shaped("Reshape", value, (*before, rounds * run, *after))
    build.resharded(value, target)
    return build.ops


def is_repeated(op: Operation) -> bool:
    """
    Whether an op takes a micro-batch's part of a value that is repeated along the batch, so
    that all parts are the same.
    """
    expand = op.operands[0].owner if isinstance(op, ReshardOp) else None
    if not isinstance(expand, Operation) or expand.name != "onnx.Expand":
        return False
    before, after = shape_of(expand.operands[0].type), shape_of(op.results[0].type)
    place = split_over_time(op.results[0]).dim - (len(after) - len(before))
    return place < 0 or before[place] == 1


def repeated_ops(source: SSAValue, target: Attribute, mesh: Mesh) -> list[Operation]:
    """
    Returns the ops that repeat a value along one micro-batch; the last one has the result.
    """
    build = PartBuilder(mesh)
    build.resharded(build.shaped("Expand", source, shape_of(target)), target)
    return build.ops
