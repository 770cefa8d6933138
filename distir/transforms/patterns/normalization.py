"""Recognises root-mean-square normalisation that is written as elementary ops."""

from __future__ import annotations

from onnx import TensorProto
from xdsl.dialects.builtin import Float32Type, Float64Type
from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import known_shape
from distir.transforms.patterns.match import (
    array_of,
    element,
    number,
    plus_constant,
    producer,
    replace_by,
)


def raise_rms_norm(op: OnnxOp) -> bool:
    """
    Replaces `w x / sqrt(mean(x^2) + epsilon)` by an RMSNormalization if `op` is the
    last op of the expression. The mean must be over the last dimension. Returns whether
    it was replaced.
    """
    # In half precision the separate ops round intermediate results differently.
    if op.name != "onnx.Mul" or not isinstance(
        element(op.results[0]), Float32Type | Float64Type
    ):
        return False
    for i in (0, 1):
        found = _normalized(op.operands[i])
        weight = op.operands[1 - i]
        if found is None:
            continue
        x, epsilon = found
        shape = known_shape(x)
        if (
            shape is not None
            and shape == known_shape(op.results[0])
            and known_shape(weight) == shape[-1:]
        ):
            double = isinstance(element(x), Float64Type)
            replace_by(
                op,
                "RMSNormalization",
                [x, weight],
                epsilon=epsilon,
                stash_type=TensorProto.DOUBLE if double else TensorProto.FLOAT,
            )
            return True
    return False


def _normalized(value: SSAValue) -> tuple[SSAValue, float] | None:
    """
    Returns x and epsilon if `value` is `x / sqrt(mean(x^2) + epsilon)`, else None.
    """
    divide = producer(value, "Div")
    if divide is not None:
        return _root_mean_square(divide.operands[1], divide.operands[0])
    multiply = producer(value, "Mul")
    if multiply is None:
        return None
    for i in (0, 1):
        x, inverse = multiply.operands[i], multiply.operands[1 - i]
        reciprocal = producer(inverse, "Reciprocal")
        quotient = producer(inverse, "Div")
        root = None
        if reciprocal is not None:
            root = reciprocal.operands[0]
        elif quotient is not None and number(quotient.operands[0]) == 1.0:
            root = quotient.operands[1]
        found = None if root is None else _root_mean_square(root, x)
        if found is not None:
            return found
    return None


def _root_mean_square(value: SSAValue, x: SSAValue) -> tuple[SSAValue, float] | None:
    root = producer(value, "Sqrt")
    shifted = None if root is None else plus_constant(root.operands[0])
    if shifted is None:
        return None
    mean = producer(shifted[0], "ReduceMean")
    if mean is None or not mean.attribute("keepdims"):
        return None
    axes = array_of(mean.input(1))
    rank = len(known_shape(x) or ())
    if axes is None or rank == 0 or axes.size != 1 or axes.item() % rank != rank - 1:
        return None
    square = mean.operands[0]
    power, multiply = producer(square, "Pow"), producer(square, "Mul")
    squared = (
        power is not None
        and power.operands[0] is x
        and number(power.operands[1]) == 2.0
    ) or (multiply is not None and all(v is x for v in multiply.operands))
    return (x, shifted[1]) if squared else None
