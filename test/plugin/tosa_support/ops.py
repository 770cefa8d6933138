"""
What DistIR is to know of `tosa`, a dialect of MLIR that belongs to neither this package
nor DistIR. xDSL has its ops; this module is imported when a program first uses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects import tosa
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from distir.extension import (
    GradientBuilder,
    LocalContext,
    OpSupport,
    TorchCall,
    register_op,
)
from distir.rules import (
    Rule,
    RuleBuilder,
    elementwise_rule,
    rule_from_maps,
    rule_from_text,
    shape_of,
)

# Elementwise ops, whose operands of size 1 are broadcast. Partial sums pass through a sum
# if all operands are partial, and through a product if one is.


def sum_gradient(
    op: tosa.AddOp, gradients: Sequence[SSAValue | None], build: GradientBuilder
) -> list[SSAValue | None]:
    """The gradient of the sum, summed over dimensions that were broadcast."""
    (dy,) = gradients
    assert dy is not None
    return [build.sum_to(dy, operand) for operand in op.operands]


register_op(
    "tosa.add",
    OpSupport(
        rule=elementwise_rule("all"),
        reference=lambda op, x, y: x + y,
        gradient=sum_gradient,
        torch="{0} + {1}",
    ),
)
register_op(
    "tosa.sin",
    OpSupport(
        rule=elementwise_rule(),
        reference=lambda op, x: np.sin(x),
        torch="torch.sin({0})",
    ),
)


def clamp_in_torch(call: TorchCall) -> str:
    """The expression in the generated program, with the bounds as literals."""
    low, high = call.attribute("min_val"), call.attribute("max_val")
    return f"torch.clamp({call.operand(0)}, {low!r}, {high!r})"


register_op(
    "tosa.clamp",
    OpSupport(
        rule=elementwise_rule(),
        reference=lambda op, x: np.clip(
            x, op.min_val.value.data, op.max_val.value.data
        ),
        torch=clamp_in_torch,
    ),
)


# A product of matrices in batches, from which zero points of quantization are taken away.
# Without these, the product of a partial sum is a partial sum.
PRODUCT = "b m k, b k n, ?, ? -> b m n flops 2*b*m*n*k"
product, product_without_zeros = map(
    rule_from_text, (PRODUCT, PRODUCT.replace("flops", "linear 0, 1 flops"))
)


def product_rule(op: tosa.MatMulOp) -> Rule:
    """The rule, with partial sums if both zero points are 0."""
    points = [value.owner for value in (op.a_zp, op.b_zp)]
    is_plain = all(
        isinstance(point, tosa.ConstOp) and not any(point.values.get_values())
        for point in points
    )
    return (product_without_zeros if is_plain else product)(op)


def product_gradient(
    op: tosa.MatMulOp, gradients: Sequence[SSAValue | None], build: GradientBuilder
) -> list[SSAValue | None]:
    """The gradients of both factors; the zero points, which are constants, have none."""
    (dy,) = gradients
    given = build.onnx("Sub", op.a, op.a_zp), build.onnx("Sub", op.b, op.b_zp)
    a, b = (build.onnx("Transpose", x, perm=[0, 2, 1]) for x in given)
    return [build.onnx("MatMul", dy, b), build.onnx("MatMul", a, dy), None, None]


register_op(
    "tosa.matmul",
    OpSupport(
        rule=product_rule,
        reference=lambda op, a, b, a_zp, b_zp: (a - a_zp) @ (b - b_zp),
        gradient=product_gradient,
        torch="({0} - {2}) @ ({1} - {3})",
    ),
)

# A sum over the dimension that the attribute `axis` says: `*a@axis` is as many dimensions.
register_op(
    "tosa.reduce_sum",
    OpSupport(
        rule="*a@axis k *b -> *a ? *b linear 0",
        reference=lambda op, x: x.sum(op.axis.value.data, keepdims=True),
        torch="{0}.sum({axis}, keepdim=True)",
    ),
)


# The same from indexing maps, for a maximum.
def maps_of_reduction(op: Any) -> list[AffineMap]:
    """The elements that an iteration reads and writes; the reduced dimension stays."""
    rank, axis = len(shape_of(op.input)), op.axis.value.data
    loops = [AffineExpr.dimension(i) for i in range(rank)]
    kept = [AffineExpr.constant(0) if i == axis else loops[i] for i in range(rank)]
    return [AffineMap.identity(rank), AffineMap(rank, 0, tuple(kept))]


register_op(
    "tosa.reduce_max",
    OpSupport(
        rule=rule_from_maps(maps_of_reduction, reductions="max"),
        reference=lambda op, x: x.max(op.axis.value.data, keepdims=True),
        torch="{0}.amax({axis}, keepdim=True)",
    ),
)


# Several operands that are joined along a dimension, which stays whole.
def concat_rule(op: tosa.ConcatOp) -> Rule:
    """The dimensions that are not joined are factors of all operands."""
    build, axis = RuleBuilder(op), op.axis.value.data
    shape = shape_of(op.output)
    dims = tuple(
        () if i == axis else build.factor(size) for i, size in enumerate(shape)
    )
    every = range(len(op.tensors))
    return build.rule([dims for _ in every], [dims], linear=[list(every)])


register_op(
    "tosa.concat",
    OpSupport(
        rule=concat_rule,
        reference=lambda op, *tensors: np.concatenate(tensors, op.axis.value.data),
        torch="torch.cat([{*}], {axis})",
    ),
)


# A constant. If all elements are equal, a device makes its part by itself.
def constant_rule(op: tosa.ConstOp) -> Rule:
    """Any layout for equal elements; other constants are whole on every device."""
    if not op.values.is_splat():
        return Rule.replicated(op)
    build = RuleBuilder(op)
    return build.rule([], [build.factors(shape_of(op.output))])


def constant_of_a_device(context: LocalContext) -> list[Operation]:
    """The constant of the local shape."""
    op = context.same_op()
    value, (type_,) = op.properties["values"], context.result_types
    assert isinstance(value, DenseIntOrFPElementsAttr) and isinstance(type_, TensorType)
    if value.is_splat():
        number = value.get_values()[0]
        op.properties["values"] = DenseIntOrFPElementsAttr.from_list(type_, [number])
    return [op]


def constant(op: tosa.ConstOp) -> Any:
    """The value, as an array."""
    return np.reshape(list(op.values.get_values()), shape_of(op.output))


def constant_in_torch(call: TorchCall) -> str:
    """The expression in the generated program: the elements as a literal."""
    values = call.op.properties["values"]
    assert isinstance(values, DenseIntOrFPElementsAttr)
    written = (
        f"torch.tensor({list(values.get_values())!r}, dtype={call.result_dtype()})"
    )
    return f"{written}.reshape({call.result_shape()!r})"


register_op(
    "tosa.const",
    OpSupport(
        rule=constant_rule,
        local_form=constant_of_a_device,
        reference=constant,
        torch=constant_in_torch,
    ),
)
