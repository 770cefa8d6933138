"""Fuses products with a weight matrix, with or without a bias."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.tensors import known_shape
from distir.lowering.rewrites.torch_call import fused
from distir.transforms.patterns.match import (
    element,
    producer,
    swaps_last_two,
    used_once,
)


def _transposed(weight: SSAValue) -> tuple[str, SSAValue]:
    """
    Returns a matrix as F.linear takes it, (outputs, inputs): its expression and its value.
    """
    transpose = producer(weight, "Transpose")
    if transpose is not None and swaps_last_two(transpose):
        return "{1}", transpose.operands[0]
    return "{1}.t()", weight


def _is_float_matmul(op: OnnxOp | None) -> bool:
    return (
        op is not None
        and "int" not in str(element(op.operands[0]))
        and not str(element(op.operands[0])).startswith(("i", "ui"))
    )


def fuse_linear(op: OnnxOp) -> bool:
    """
    Fuses MatMul with a matrix and Add of a vector into F.linear; returns whether it did.
    """
    if op.name != "onnx.Add":
        return False
    for i in (0, 1):
        product, bias = producer(op.operands[i], "MatMul"), op.operands[1 - i]
        if (
            product is None
            or not used_once(op.operands[i])
            or not _is_float_matmul(product)
        ):
            continue
        x, weight = product.operands
        shapes = known_shape(weight), known_shape(bias), known_shape(x)
        if (
            shapes[0] is not None
            and shapes[2] is not None
            and len(shapes[0]) == 2
            and len(shapes[2]) >= 2
            and shapes[1] == (shapes[0][1],)
        ):
            expression, matrix = _transposed(weight)
            fused(op, f"F.linear({{0}}, {expression}, {{2}})", [x, matrix, bias])
            return True
    return False


def fuse_transposed_linear(op: OnnxOp) -> bool:
    """Fuses MatMul with a transposed matrix into F.linear; returns whether it did."""
    if op.name != "onnx.MatMul" or not _is_float_matmul(op):
        return False
    x, weight = op.operands
    shape = known_shape(weight)
    expression, matrix = _transposed(weight)
    if (
        shape is None
        or len(shape) != 2
        or matrix is weight
        or len(known_shape(x) or ()) < 2
    ):
        return False
    fused(op, f"F.linear({{0}}, {expression})", [x, matrix])
    return True


def fuse_flattened_linear(op: OnnxOp) -> bool:
    """
    Fuses Reshape to a matrix, Gemm and Reshape back into F.linear, which needs no matrix;
    returns whether it did.
    """
    if op.name != "onnx.Reshape":
        return False
    gemm = producer(op.operands[0], "Gemm")
    if gemm is None or not used_once(op.operands[0]) or not _is_float_matmul(gemm):
        return False
    if gemm.attribute("alpha") != 1.0 or gemm.attribute("beta") != 1.0:
        return False
    flat = producer(gemm.operands[0], "Reshape")
    weight = gemm.operands[1]
    bias = gemm.input(2)
    if flat is None or gemm.attribute("transA"):
        return False
    x = flat.operands[0]
    before, after, matrix = (
        known_shape(x),
        known_shape(op.results[0]),
        known_shape(weight),
    )
    if before is None or after is None or matrix is None or len(before) < 2:
        return False
    inputs, outputs = reversed(matrix) if gemm.attribute("transB") else matrix
    if before[-1] != inputs or (*before[:-1], outputs) != after:
        return False
    if bias is not None and known_shape(bias) != (outputs,):
        return False
    if gemm.attribute("transB"):
        expression = "{1}"
    else:
        expression, weight = _transposed(weight)
    operands = [x, weight] if bias is None else [x, weight, bias]
    tail = "" if bias is None else ", {2}"
    fused(op, f"F.linear({{0}}, {expression}{tail})", operands)
    return True
