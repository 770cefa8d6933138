"""The part of a value, the same for all micro-batches, that belongs to one of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import (
    Layout,
    LayoutAttr,
    ReshardOp,
    layout_of,
    with_layout,
)
from distir.dialects.onnx import operator
from distir.dialects.onnx_values import constant_attr, element_type_of_dtype
from distir.sharding.choice import Placement
from distir.sharding.mesh import Mesh
from distir.sharding.rule import infer, rule_for


def part_ops(
    source: SSAValue,
    target: Attribute,
    placement: Placement,
    count: int,
    number: SSAValue,
    mesh: Mesh,
) -> list[Operation]:
    """
    The ops that take it, the last of which gives it. A function runs for each
    micro-batch, so the place is known only by the number of the micro-batch.

    - `placement`: how `source` falls into `count` parts; `number`: which of them;
    - `target`: the type of the part; `mesh`: what both are on.
    """
    ops: list[Operation] = []

    def add(
        name: str,
        operands: Sequence[SSAValue],
        shape: Sequence[int],
        **attributes: object,
    ) -> SSAValue:
        assert isinstance(source.type, TensorType)
        plain = TensorType(source.type.element_type, shape)
        op = operator(name).build_op(operands, [plain], attributes)
        layouts = [layout_of(v) or Layout(mesh.name) for v in operands]
        (layout,) = infer(rule_for(op), layouts, mesh).results
        ops.append(
            operator(name).build_op(operands, [with_layout(plain, layout)], attributes)
        )
        return ops[-1].results[0]

    def reshaped(value: SSAValue, shape: Sequence[int]) -> SSAValue:
        sizes = np.array(shape, dtype=np.int64)
        whole = LayoutAttr(Layout(mesh.name))
        type_ = TensorType(element_type_of_dtype(sizes.dtype), sizes.shape, whole)
        constant = operator("Constant").build_op(
            [], [type_], {"value": constant_attr(sizes)}
        )
        ops.append(constant)
        return add("Reshape", [value, constant.results[0]], shape)

    assert isinstance(source.type, TensorType)
    shape, dim = source.type.get_shape(), placement.dim
    run = placement.run or shape[dim] // count
    before, after = shape[:dim], shape[dim + 1 :]
    value = source
    layout = layout_of(source)
    assert layout is not None
    if layout.dim(dim):
        ops.append(
            ReshardOp(
                value, with_layout(source.type, layout.with_dim(dim, (), len(shape)))
            )
        )
        value = ops[-1].results[0]
    # Along that dimension, runs of the micro-batches follow each other in turn.
    rounds = shape[dim] // (count * run)
    turns = (rounds,) if rounds > 1 else ()
    value = reshaped(value, (*before, *turns, count, run, *after))
    value = add(
        "Gather",
        [value, number],
        (*before, *turns, run, *after),
        axis=dim + len(turns),
    )
    if turns:
        value = reshaped(value, (*before, rounds * run, *after))
    if value.type != target:
        ops.append(ReshardOp(value, target))
    return ops
