"""
Tensors of 8-bit numbers in which each row, along the last dimension, has a scale.
Caches of inference and matrices of experts can have this form.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.checks import check_float, check_shape, check_type
from distir.dialects.train_ops.quantized_weights import EIGHT_BITS


class _RowsOp(TrainOp):
    """Base of conversions to and from rows of 8 bits."""

    def _verify(self, x: SSAValue, quantized: SSAValue, scale: SSAValue) -> None:
        check_float(self, "x", x)
        shape = shape_of(x)
        if not shape:
            raise VerifyException(f"{self.name}: x is a number, which has no rows")
        kinds = [kind for kind, _ in EIGHT_BITS.values()]
        if element_type(quantized) not in kinds:
            raise VerifyException(
                f"{self.name}: quantized has elements of type {element_type(quantized)}, "
                f"expected {' or '.join(map(str, kinds))}"
            )
        check_shape(self, "quantized", quantized, shape)
        check_type(self, "scale", scale, TensorType(element_type(x), shape[:-1]))


@irdl_op_definition
class QuantizeRowsOp(_RowsOp):
    """
    Converts `x` [..., k] to `quantized` [..., k], 8-bit integers or floats
    (`EIGHT_BITS`), and `scale` [...], of the type of `x`, so that x = quantized *
    scale. The largest magnitude of a row becomes the largest number of the 8-bit type.
    The scale of a row of zeros is 1.
    """

    name = "train.quantize_rows"
    FACTORS: ClassVar[str] = "[*a, k] -> [*a, k], [*a] keep k"
    TORCH: ClassVar[str] = "quantize_rows({0}, {result:dtype})"
    TORCH_MODULE: ClassVar[str] = "quantized_rows"
    COMPUTES_IN: ClassVar[str] = "x"

    x = operand_def(TensorType)
    quantized = result_def(TensorType)
    scale = result_def(TensorType)

    def verify_(self) -> None:
        self._verify(self.x, self.quantized, self.scale)


@irdl_op_definition
class DequantizeRowsOp(_RowsOp):
    """
    Converts rows of 8-bit numbers back: `x` [..., k] is `quantized` [..., k] times
    `scale` [...].

    Products and attention can convert while they read. If all users of `x` are such
    ops, estimates of time and memory count only the 8-bit numbers that they read, not
    the conversion or `x`.
    """

    name = "train.dequantize_rows"
    FACTORS: ClassVar[str] = "[*a, k], [*a] -> [*a, k]"
    TORCH: ClassVar[str] = "dequantize_rows({*})"
    TORCH_MODULE: ClassVar[str] = "quantized_rows"

    quantized = operand_def(TensorType)
    scale = operand_def(TensorType)
    x = result_def(TensorType)

    def verify_(self) -> None:
        self._verify(self.x, self.quantized, self.scale)


OPS = [QuantizeRowsOp, DequantizeRowsOp]
