"""
The mixed interpreter (the DistIR paper, section 3.3). A value is a NumPy array if its
elements are known, else a type.

Each op has several implementations, from the most precise to the least. The first one
that knows enough about the operands is used. For example, `Shape` of a type is an
array, an op on arrays is computed, and `Reshape` of a type to a known shape has an
exact type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    OpImplResult,
    PythonValues,
    register_impls,
)
from xdsl.ir import Attribute, Operation
from xdsl.traits import is_side_effect_free

from distir.dialects.dist import layout_of
from distir.dialects.onnx import OPERATORS
from distir.dialects.onnx_ops.inference import KNOWN_SIZE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import element_type_of_dtype, tensor_type
from distir.interpreters.onnx_evaluator import evaluated
from distir.interpreters.types import is_static, result_types

Implementation = Callable[[OnnxOp, PythonValues, int], PythonValues | None]
"""
A function of an op, its operands and a limit. It returns the op's results, or None if
it cannot give them. Results that are arrays have at most as many elements as the limit.
"""


def type_of(value: Any) -> Attribute:
    """Returns the type of a mixed value. A mixed value is an array or a type."""
    if isinstance(value, np.ndarray):
        return tensor_type(value.shape, element_type_of_dtype(value.dtype))
    return value


def join(a: Any, b: Any) -> Any:
    """
    Returns the most precise mixed value that describes both `a` and `b`. The result is
    the array if `a` and `b` are equal arrays. Otherwise the result is a type in which
    sizes that differ are dynamic.
    """
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        same = a.dtype == b.dtype and np.array_equal(a, b)
        if same or (a.dtype.kind in "fc" and np.array_equal(a, b, equal_nan=True)):
            return a
    left, right = type_of(a), type_of(b)
    if left == right:
        return left
    if not isinstance(left, TensorType) or not isinstance(right, TensorType):
        return left
    if left.get_num_dims() != right.get_num_dims():
        return right
    shape = [
        m if m == n else DYNAMIC_INDEX
        for m, n in zip(left.get_shape(), right.get_shape(), strict=True)
    ]
    return tensor_type(shape, left.element_type, left.encoding)


def from_shape(op: OnnxOp, args: PythonValues, limit: int) -> PythonValues | None:
    """
    Returns the result of `Shape` or `Size`, which need only the type of their operand.
    Returns None for all other ops, and if a size that the result needs is unknown.
    """
    if op.name not in ("onnx.Shape", "onnx.Size"):
        return None
    type_ = type_of(args[0])
    if not isinstance(type_, TensorType):
        return None
    shape = type_.get_shape()
    if op.name == "onnx.Shape":
        shape = shape[op.attribute("start") : op.attribute("end", len(shape))]
    if any(size < 0 for size in shape):
        return None
    answer = shape if op.name == "onnx.Shape" else prod(shape)
    return (np.array(answer, dtype=np.int64),)


def from_values(op: OnnxOp, args: PythonValues, limit: int) -> PythonValues | None:
    """
    Returns the computed results of an op without side effects. Returns None unless all
    operands are known and each result has at most `limit` elements.
    """
    if not all(isinstance(value, np.ndarray) for value in args):
        return None
    if not is_side_effect_free(op):
        return None
    types = result_types(op, [type_of(v) for v in args], args)
    for type_ in types:
        if not isinstance(type_, TensorType) or (
            is_static(type_) and prod(type_.get_shape()) > limit
        ):
            return None
    operands = iter(args)
    inputs = [None if v is None else next(operands) for v in op.input_values]
    results = evaluated(op, inputs)
    if isinstance(results, Exception) or any(r.size > limit for r in results):
        return None
    return tuple(results)


def from_types(op: OnnxOp, args: PythonValues, limit: int) -> PythonValues | None:
    """
    Returns the inferred result types of an op. Operands that are arrays contribute
    their values.
    """
    known = [v if isinstance(v, np.ndarray) else None for v in args]
    return tuple(result_types(op, [type_of(v) for v in args], known))


IMPLEMENTATIONS: tuple[Implementation, ...] = (from_shape, from_values, from_types)
"""The functions that implement every op, from the most precise to the least."""


@register_impls
class OnnxMixed(InterpreterFunctions):
    """
    Runs every operator of `onnx` on mixed values. A result with more than `limit`
    elements is not kept as an array, only as a type.
    """

    def __init__(self, limit: int = KNOWN_SIZE):
        self.limit = limit

    @classmethod
    def _impls(cls) -> Iterable[tuple[type[Operation], Any]]:
        return ((op_type, cls.run) for op_type in OPERATORS.values())

    def run(
        self, interpreter: Interpreter, op: OnnxOp, args: PythonValues
    ) -> OpImplResult:
        for implementation in IMPLEMENTATIONS:
            results = implementation(op, args, self.limit)
            if results is not None:
                return OpImplResult(results, None)
        raise AssertionError("from_types always answers")


def is_whole(value: Any) -> bool:
    """
    Whether each device holds the whole `value`. This is the case if `value` has no
    layout, or a layout that neither splits the value nor makes it partial.
    """
    layout = layout_of(value)
    return layout is None or not (layout.dims or layout.partial)
