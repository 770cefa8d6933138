"""Emitters of products in 8-bit floats."""

from __future__ import annotations

from distir.dialects.onnx_values import onnx_element_type
from distir.dialects.train_ops.float8 import (
    FORMATS,
    Float8LinearOp,
    Float8ScaleOp,
    ToFloat8Op,
)
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.float8_scale")
def float8_scale(call: Call) -> str:
    op = call.op
    assert isinstance(op, Float8ScaleOp)
    return call.like_op(
        "float8", [call.operand(0), repr(op.largest), repr(op.dimension)]
    )


@torch_emitter("train.to_float8")
def to_float8(call: Call) -> str:
    assert isinstance(call.op, ToFloat8Op)
    return call.like_op("float8", [*call.operands(), call.result_dtype()])


@torch_emitter("train.float8_product")
def float8_product(call: Call) -> str:
    return call.like_op("float8", [*call.operands(), call.result_dtype()])


@torch_emitter("train.float8_linear")
def float8_linear(call: Call) -> str:
    op = call.op
    assert isinstance(op, Float8LinearOp)
    types = [call.dtype(onnx_element_type(FORMATS[name][0])) for name in op.formats]
    is_whole = repr(op.scaling.data == "tensor")
    return call.like_op("float8", [*call.operands(), *types, is_whole])
