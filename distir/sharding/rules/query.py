"""Rules and local forms of ops that ask for a tensor's shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.ir import Operation

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, onnx_rule, whole
from distir.sharding.rules.local_builder import LocalBuilder


@onnx_rule("Shape", "Size")
def shape_query(op: OnnxOp) -> Rule:
    """
    The rule of Shape and Size: the operand may be split in any way, as the answer is about
    the whole tensor.
    """
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.operands[0]))
    return builder.rule([dims], [whole(op.results[0])])


@local_form("onnx.Shape")
def shape_local(context: LocalContext) -> Sequence[Operation]:
    """The local form of Shape: the global shape as a constant."""
    builder = LocalBuilder(context)
    sizes = shape_of(context.op.operands[0])
    start, end = builder.op.attribute("start"), builder.op.attribute("end", len(sizes))
    builder.shape_constant(sizes[start:end])
    return builder.ops


@local_form("onnx.Size")
def size_local(context: LocalContext) -> Sequence[Operation]:
    """The local form of Size: the global number of elements as a constant."""
    builder = LocalBuilder(context)
    count = prod(shape_of(context.op.operands[0]))
    builder.constant(np.array(count, dtype=np.int64))
    return builder.ops
