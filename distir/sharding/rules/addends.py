"""
Decompositions of ops that add a term, such as a bias, to a sum: first the sum, then the
addition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.dialects.builtin import TensorType, i64
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OMITTED, OnnxOp
from distir.dialects.onnx_ops.values import constant_attr, numpy_dtype, tensor_type
from distir.dialects.train_ops.indexing import ScatterSumOp
from distir.sharding.decompose import decomposition


def _scope(op: OnnxOp) -> dict[str, Attribute]:
    return {SCOPE: op.attributes[SCOPE]} if SCOPE in op.attributes else {}


def _new(
    op: OnnxOp,
    name: str,
    inputs: list[SSAValue | Operation | None],
    result_type: Attribute,
    attributes: dict[str, Any] | None = None,
) -> OnnxOp:
    return operator(name).build_op(inputs, [result_type], attributes, _scope(op))


def _product(op: OnnxOp, drop: tuple[str, ...] = ()) -> OnnxOp:
    """
    Returns a copy of the op with only its first two inputs and without the attributes
    `drop`, so that it adds nothing.
    """
    attributes = {k: v for k, v in op.properties.items() if k not in (OMITTED, *drop)}
    return type(op).build_op(
        [op.input(0), op.input(1)], [op.results[0].type], attributes, _scope(op)
    )


@decomposition("onnx.Gemm")
def gemm(op: Operation) -> list[Operation] | None:
    """
    Decomposes a Gemm with an input `C` into the product `alpha A B` and the addition of
    `beta C`. Returns None if the Gemm has no input `C`.
    """
    if not isinstance(op, OnnxOp) or op.input(2) is None:
        return None
    product = _product(op, ("beta",))
    bias = op.input(2)
    assert bias is not None and isinstance(bias.type, TensorType)
    ops: list[Operation] = [product]
    beta = op.attribute("beta")
    if beta != 1:
        value = np.array(beta, dtype=numpy_dtype(bias.type.element_type))
        type_ = tensor_type((), bias.type.element_type)
        scale = _new(op, "Constant", [], type_, {"value": constant_attr(value)})
        scaled = _new(op, "Mul", [bias, scale], bias.type)
        ops += [scale, scaled]
        bias = scaled.results[0]
    return [*ops, _new(op, "Add", [product, bias], op.results[0].type)]


@decomposition("onnx.Conv", "onnx.ConvTranspose")
def convolution(op: Operation) -> list[Operation] | None:
    """
    Decomposes a convolution with a bias into the convolution and the addition of the
    bias. The bias, one number per output channel, gets dimensions of size 1 for space.
    Returns None if the convolution has no bias.
    """
    if not isinstance(op, OnnxOp) or op.input(2) is None:
        return None
    product = _product(op)
    bias, result = op.input(2), op.results[0].type
    assert bias is not None
    assert isinstance(bias.type, TensorType) and isinstance(result, TensorType)
    space = result.get_num_dims() - 2
    axes = np.arange(1, 1 + space, dtype=np.int64)
    constant = _new(
        op,
        "Constant",
        [],
        tensor_type((space,), i64),
        {"value": constant_attr(axes)},
    )
    shape = (*bias.type.get_shape(), *[1] * space)
    type_ = tensor_type(shape, bias.type.element_type)
    aligned = _new(op, "Unsqueeze", [bias, constant], type_)
    return [product, constant, aligned, _new(op, "Add", [product, aligned], result)]


@decomposition("onnx.ScatterElements", "onnx.ScatterND")
def scatter(op: Operation) -> list[Operation] | None:
    """
    Decomposes a scatter that adds updates to data: first the updates of each place are
    summed, then the data are added.
    """
    if not isinstance(op, OnnxOp):
        return None
    data, indices, updates = op.operands
    axis = op.attribute("axis") if op.name == "onnx.ScatterElements" else None
    terms = ScatterSumOp(updates, indices, axis=axis, result=data.type)
    terms.attributes.update(_scope(op))
    return [terms, _new(op, "Add", [terms, data], op.results[0].type)]
