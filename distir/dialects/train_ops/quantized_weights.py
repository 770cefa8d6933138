"""
Products of activations and weights of 8 or 4 bits. Weights are converted to the type of
the activations inside the product; only their bytes are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import IntegerType, Signedness, StringAttr, TensorType, i8
from xdsl.ir import Attribute, SSAValue, TypeAttribute
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.onnx_ops.values import ElementType
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
    check_type,
)

FLOAT8 = ElementType(StringAttr("float8e4m3fn"))
PACKED = IntegerType(8, Signedness.UNSIGNED)
"""The type of bytes that hold two weights of 4 bits each."""

EIGHT_BITS: dict[str, tuple[TypeAttribute, float]] = {
    "int8": (i8, 127.0),
    "fp8": (FLOAT8, 448.0),
}
"""The formats of 8 bits, by name: the element type and its largest value."""

WEIGHT_FORMATS = (*EIGHT_BITS, "int4")
"""The formats of weights in 8 and 4 bits."""


@irdl_op_definition
class QuantizedLinearOp(TrainOp):
    """
    y = x W^T, with W[n, k] = weight[n, k] * scale[n]. `x` is `[..., m, k]`, `weight`
    has 8-bit integers or floats (`EIGHT_BITS`), and `scale` has the type of `x`: one
    number for each output. Products are computed in the type of `x`.
    """

    name = "train.quantized_linear"
    FACTORS: ClassVar[str] = "[*m, k], [n, k], [n] -> [*m, n] linear 0 flops 2*m*n*k"
    TORCH: ClassVar[str] = "quantized_linear({*})"
    TORCH_MODULE: ClassVar[str] = "quantized_weights"
    COMPUTES_IN: ClassVar[str] = "x"

    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    scale = operand_def(TensorType)
    y = result_def(TensorType)

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        x, weight = shape_of(self.x), shape_of(self.weight)
        if len(weight) != 2 or len(x) < 2 or weight[1] != x[-1]:
            raise VerifyException(
                f"{self.name}: cannot multiply {list(x)} by {list(weight)}; expected "
                f"[..., m, k] and [n, k]"
            )
        kinds = [kind for kind, _ in EIGHT_BITS.values()]
        if element_type(self.weight) not in kinds:
            raise VerifyException(
                f"{self.name}: weight has elements of type {element_type(self.weight)}, "
                f"expected {' or '.join(map(str, kinds))}"
            )
        check_type(
            self, "scale", self.scale, TensorType(element_type(self.x), weight[:1])
        )
        shape = [*x[:-1], weight[0]]
        check_type(self, "y", self.y, TensorType(element_type(self.x), shape))
        super().verify_()


@irdl_op_definition
class GroupQuantizedLinearOp(TrainOp):
    """
    y = x W^T, with weights of 4 bits that share a scale and a zero point in groups, as
    in AWQ and GPTQ: W[n, i] = (q[n, i] - zero[n, g]) * scale[n, g], where weight i of
    row n is in group g = i // (k / groups).

    `x` is `[..., m, k]`. `weight` `[n, k / 2]` packs two neighbouring weights into a
    byte, the first one in the lower half. `scale` `[n, groups]` has the type of `x`,
    and `zero` `[n, groups]` holds numbers from 0 to 15 in bytes. Products are computed
    in the type of `x`.
    """

    name = "train.group_quantized_linear"
    FACTORS: ClassVar[str] = (
        "[*m, g s], [n, g h], [n, g], [n, g] -> [*m, n] "
        "keep s h linear 0 flops 2*m*n*g*s"
    )
    TORCH: ClassVar[str] = "group_quantized_linear({*})"
    TORCH_MODULE: ClassVar[str] = "quantized_weights"
    COMPUTES_IN: ClassVar[str] = "x"

    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    scale = operand_def(TensorType)
    zero = operand_def(TensorType)
    y = result_def(TensorType)

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        x, weight = shape_of(self.x), shape_of(self.weight)
        if len(weight) != 2 or len(x) < 2 or 2 * weight[1] != x[-1]:
            raise VerifyException(
                f"{self.name}: cannot multiply {list(x)} by {list(weight)} bytes of two "
                f"weights; expected [..., m, k] and [n, k / 2]"
            )
        check_element_type(self, "weight", self.weight, PACKED)
        rows = weight[0], x[-1]
        check_groups(self, self.scale, self.zero, rows, element_type(self.x))
        shape = [*x[:-1], weight[0]]
        check_type(self, "y", self.y, TensorType(element_type(self.x), shape))
        super().verify_()


def check_groups(
    op: TrainOp,
    scale: SSAValue,
    zero: SSAValue,
    shape: Sequence[int],
    element: Attribute,
) -> None:
    """
    Raises VerifyException if `scale`, of type `element`, and `zero` do not divide each
    row of numbers [..., k] with the given `shape` into groups of equal and even size.
    """
    check_element_type(op, "scale", scale, element)
    *rows, k = shape
    groups = shape_of(scale)
    is_same = len(groups) == len(shape) and list(groups[:-1]) == rows
    if not is_same or not groups[-1] or k % (2 * groups[-1]):
        raise VerifyException(
            f"{op.name}: scale has shape {list(groups)}; expected "
            f"[{', '.join(map(str, (*rows, 'groups')))}], with groups of equal and even "
            f"size in {k} numbers"
        )
    check_element_type(op, "zero", zero, PACKED)
    check_shape(op, "zero", zero, groups)


OPS = [QuantizedLinearOp, GroupQuantizedLinearOp]
