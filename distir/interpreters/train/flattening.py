"""Computes the `train` ops that flatten tensors and restore their shape, on arrays."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.flattening import FlattenOp, UnflattenOp
from distir.interpreters.train.arithmetic import Array, computes
from distir.program.source_forms import flattened, unflattened


@computes(FlattenOp)
def flatten(op: FlattenOp, tensor: Array) -> Array:
    return flattened(tensor, shape_of(op.flat)[0], op.parts)


@computes(UnflattenOp)
def unflatten(op: UnflattenOp, flat: Array) -> Array:
    return unflattened(flat, shape_of(op.tensor), op.parts)
