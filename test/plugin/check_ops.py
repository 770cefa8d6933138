"""
Checks every op of both packages, as a user would: with public names only, and from
anywhere. A program of its own, as it imports the packages for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tosa_support.ops as tosa_support
from toy.dialect import SimilarityOp, SplitHeadsOp
from xdsl.dialects import tosa
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    TensorType,
    f32,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.test_value import create_ssa_value

from distir.extension import OpSupport, register_op
from distir.testing import OpCheckError, check_op


def value(*shape: int) -> SSAValue:
    return create_ssa_value(TensorType(f32, shape))


def made(
    kind: type[Operation],
    operands: Sequence[SSAValue],
    shape: Sequence[int],
    **properties: Attribute,
) -> Any:
    types = [TensorType(f32, shape)]
    return kind.create(operands=operands, result_types=types, properties=properties)


def constant(number: float, *shape: int) -> Any:
    values = DenseIntOrFPElementsAttr.from_list(TensorType(f32, shape), [number])
    return made(tosa.ConstOp, [], shape, values=values)


def product(point: float) -> Any:
    points = [constant(point, 1).output, constant(point, 1).output]
    operands = [value(1, 4, 8), value(1, 8, 4), *points]
    return made(tosa.MatMulOp, operands, (1, 4, 4))


bounds = {"min_val": FloatAttr(-0.5, f32), "max_val": FloatAttr(0.5, f32)}
second = IntegerAttr(1, i32)
for op in (
    made(SimilarityOp, [value(8, 4), value(4, 4)], (8, 4)),
    made(SplitHeadsOp, [value(4, 16)], (4, 4, 4), heads=IntegerAttr(4, i64)),
    made(tosa.AddOp, [value(8, 4), value(1, 4)], (8, 4)),
    made(tosa.SinOp, [value(8, 4)], (8, 4)),
    made(tosa.ClampOp, [value(8, 4)], (8, 4), **bounds),
    product(0.0),
    product(1.5),
    made(tosa.ReduceSumOp, [value(4, 8, 2)], (4, 1, 2), axis=second),
    made(tosa.ReduceMaxOp, [value(4, 8, 2)], (4, 1, 2), axis=second),
    made(tosa.ConcatOp, [value(4, 8), value(4, 3)], (4, 11), axis=second),
    constant(2.5, 4, 8),
):
    print(check_op(op))

register_op("tosa.matmul", OpSupport(rule=tosa_support.product_without_zeros))
try:
    check_op(product(1.5))
except OpCheckError as error:
    print(error)
