"""
The sharding rule of Muon's orthogonalisation, and the decomposition of the
orthogonalisation into products. All remaining ops of optimizers have rules from their
formulas or texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import TensorType, f64
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import (
    constant_attr,
    element_type_of_dtype,
    numpy_dtype,
    onnx_element_type,
)
from distir.dialects.tensors import element_type, known_shape, shape_of
from distir.dialects.train_ops.checks import accumulation_type
from distir.dialects.train_ops.muon import OrthogonalizeOp
from distir.sharding.decompose import decomposition, in_scope_of
from distir.sharding.factor_text import rule_from
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import train_rule

_FACTORS = rule_from("[*s, m, n] -> [*s, m, n] decompose m n")


@train_rule("orthogonalize")
def orthogonalize(op: OrthogonalizeOp) -> Rule:
    """
    Returns the sharding rule of the orthogonalisation of matrices. Matrices of a stack
    are parallel. Only the decomposition into products splits the longer dimension.
    """
    shape = known_shape(op.x)
    if shape is None:
        return Rule.replicated(op)
    *stack, rows, columns = shape
    short, long = sorted((rows, columns))
    products = 4 * short * short * long + 2 * short**3
    flops = prod(stack) * op.steps.value.data * products
    return replace(_FACTORS(op), flops=flops)


class _Steps:
    """The ops of a decomposition, in order."""

    def __init__(self) -> None:
        self.ops: list[Operation] = []

    def constant(self, value: Any) -> SSAValue:
        array = np.asarray(value)
        type_ = TensorType(element_type_of_dtype(array.dtype), array.shape)
        return self.add("Constant", [], type_, value=constant_attr(array))

    def add(
        self, name: str, operands: Sequence[SSAValue], type_: Attribute, **given: Any
    ) -> SSAValue:
        op = operator(name).build_op(operands, [type_], given)
        self.ops.append(op)
        return op.results[0]


@decomposition("train.orthogonalize")
def orthogonalize_in_steps(op: Operation) -> list[Operation]:
    """
    Decomposes the orthogonalisation into its matrix products. If the longer dimension
    is split, the devices add up their parts of X transpose(X), a square matrix whose
    size is the shorter dimension. This sum is the only communication.
    """
    assert isinstance(op, OrthogonalizeOp)
    steps = _Steps()
    element, shape = element_type(op.x), shape_of(op.x)
    dtype = numpy_dtype(element)
    *stack, rows, columns = shape
    perm = [*range(len(stack)), len(stack) + 1, len(stack)]
    short, long = sorted((rows, columns))
    flat, tall, square = (
        TensorType(element, (*stack, *sizes))
        for sizes in ((short, long), (long, short), (short, short))
    )

    def transposed(value: SSAValue, type_: Attribute) -> SSAValue:
        return steps.add("Transpose", [value], type_, perm=perm)

    def scaled(value: SSAValue, factor: float) -> SSAValue:
        number = steps.constant(np.array(factor, dtype))
        return steps.add("Mul", [value, number], value.type)

    x = op.x if rows <= columns else transposed(op.x, flat)
    sums = accumulation_type(x)
    wide, one = TensorType(sums, (*stack, short, long)), (*stack, 1, 1)
    cast = steps.add("Cast", [x], wide, to=onnx_element_type(sums))
    squares = steps.add("Mul", [cast, cast], wide)
    axes = steps.constant(np.array([-2, -1], np.int64))
    kept = {"keepdims": 1}
    total = steps.add("ReduceSum", [squares, axes], TensorType(sums, one), **kept)
    norm = steps.add("Sqrt", [total], TensorType(sums, one))
    norm = steps.add(
        "Cast", [norm], TensorType(element, one), to=onnx_element_type(element)
    )
    least = steps.constant(np.array(op.epsilon.value.data, dtype))
    norm = steps.add("Max", [norm, least], norm.type)
    x = steps.add("Div", [x, norm], flat)
    for _ in range(op.steps.value.data):
        if stack or element == f64:  # alpha and beta of a Gemm are f32
            gram = steps.add("MatMul", [x, transposed(x, tall)], square)
            power = steps.add("MatMul", [gram, gram], square)
            terms = [scaled(gram, op.b.value.data), scaled(power, op.c.value.data)]
            factor = steps.add("Add", terms, square)
            moved = steps.add("MatMul", [factor, x], flat)
            x = steps.add("Add", [scaled(x, op.a.value.data), moved], flat)
            continue
        a, b, c = (value.value.data for value in (op.a, op.b, op.c))
        gram = steps.add("Gemm", [x, x], square, transB=1)
        factor = steps.add("Gemm", [gram, gram, gram], square, alpha=c, beta=b)
        x = steps.add("Gemm", [factor, x, x], flat, beta=a)
    if rows > columns:
        transposed(x, tall)
    return in_scope_of(op, steps.ops)
