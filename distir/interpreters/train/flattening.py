"""Flattening on arrays, and what it costs."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.flattening import FlattenOp, UnflattenOp
from distir.interpreters.simulator.costs.op_costs import op_class
from distir.interpreters.train.arithmetic import Array, computes
from distir.program.source_forms import flattened, unflattened


@computes(FlattenOp)
def flatten(op: FlattenOp, tensor: Array) -> Array:
    return flattened(tensor, shape_of(op.flat)[0], op.parts)


@computes(UnflattenOp)
def unflatten(op: UnflattenOp, flat: Array) -> Array:
    return unflattened(flat, shape_of(op.tensor), op.parts)


op_class("elementwise", "train.flatten")
