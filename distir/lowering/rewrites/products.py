"""
Fuses products: of a matrix with a weight, with or without a bias, and of tensors that
are added to another tensor.
"""

from __future__ import annotations

from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import known_shape
from distir.dialects.torch import AddcmulOp, LinearOp
from distir.transforms.patterns.match import (
    element,
    producer,
    swaps_last_two,
    used_once,
)


def supersede(op: Operation, new: Operation, name: str | None = None) -> None:
    """
    Inserts `new` before `op` and replaces all uses of the result of `op`, which stays
    in the program. `new` gets the scope and the location of `op`. Its result gets the
    name of the old result, or `name` if the old result has no name.
    """
    block = op.parent_block()
    assert block is not None
    before, after = op.results[0], new.results[0]
    if SCOPE in op.attributes:
        new.attributes[SCOPE] = op.attributes[SCOPE]
    new.location = op.location
    after.name_hint = before.name_hint or name
    block.insert_op_before(new, op)
    before.replace_all_uses_with(after)


def _replace_by_linear(
    op: OnnxOp,
    x: SSAValue,
    matrix: SSAValue,
    transposed: bool,
    bias: SSAValue | None = None,
) -> None:
    type_ = op.results[0].type
    new = LinearOp(x, matrix, bias, type_, transposed=transposed)
    supersede(op, new, "linear")


def _matrix(weight: SSAValue) -> tuple[SSAValue, bool]:
    """
    Returns the weight for F.linear, and whether the call must transpose it. If `weight`
    [inputs, outputs] is the transpose of another value, returns that value and False;
    else `weight` and True.
    """
    transpose = producer(weight, "Transpose")
    if transpose is not None and swaps_last_two(transpose):
        return transpose.operands[0], False
    return weight, True


def _is_float_matmul(op: OnnxOp | None) -> bool:
    return (
        op is not None
        and "int" not in str(element(op.operands[0]))
        and not str(element(op.operands[0])).startswith(("i", "ui"))
    )


def fuse_linear(op: OnnxOp) -> bool:
    """
    Fuses a MatMul with a matrix and an Add of a vector into F.linear. Returns whether
    the two ops were fused.
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
            _replace_by_linear(op, x, *_matrix(weight), bias)
            return True
    return False


def fuse_transposed_linear(op: OnnxOp) -> bool:
    """
    Fuses a MatMul with a transposed matrix into F.linear. Returns whether it was fused.
    """
    if op.name != "onnx.MatMul" or not _is_float_matmul(op):
        return False
    x, weight = op.operands
    shape = known_shape(weight)
    matrix, transposed = _matrix(weight)
    if (
        shape is None
        or len(shape) != 2
        or matrix is weight
        or len(known_shape(x) or ()) < 2
    ):
        return False
    _replace_by_linear(op, x, matrix, transposed)
    return True


def fuse_flattened_linear(op: OnnxOp) -> bool:
    """
    Fuses a Reshape to a matrix, a Gemm and a Reshape back into F.linear, which needs no
    reshapes. Returns whether the three ops were fused.
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
        _replace_by_linear(op, x, weight, False, bias)
    else:
        _replace_by_linear(op, x, *_matrix(weight), bias)
    return True


def fuse_multiply_add(op: OnnxOp) -> bool:
    """
    Fuses a Mul of two tensors and an Add into addcmul. Returns whether the two ops were
    fused. The factors may be broadcast; they must not be scalars.
    """
    if op.name != "onnx.Add" or not isinstance(element(op.results[0]), AnyFloat):
        return False
    shape = known_shape(op.results[0])
    if not shape or known_shape(op.operands[0]) != known_shape(op.operands[1]):
        return False
    for product, rest in (op.operands, reversed(op.operands)):
        multiply = producer(product, "Mul")
        if multiply is None or not used_once(product):
            continue
        # A scalar is a Python number for Mul, but addcmul needs a tensor.
        if any(not known_shape(factor) for factor in multiply.operands):
            continue
        x, y = multiply.operands
        supersede(op, AddcmulOp(rest, x, y, op.results[0].type), "addcmul")
        return True
    return False
