"""
Tensors of 8-bit or 4-bit numbers with scales. A tensor of 8-bit numbers has one scale
for each row along the last dimension. A tensor of 4-bit numbers has one scale for each
group of a row. Caches of inference (8 bits) and matrices of experts can have this form.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
    check_type,
)
from distir.dialects.train_ops.quantized_weights import (
    EIGHT_BITS,
    PACKED,
    check_groups,
)


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

    Products and attention can convert the rows while they read them. If all users of
    `x` are products or attention, estimates of time and memory count only the 8-bit
    numbers that they read, not the conversion or `x`.
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


@irdl_op_definition
class DequantizeGroupsOp(TrainOp):
    """
    The numbers `x` [..., k] that weights of 4 bits stand for, in groups that share a
    scale and a zero point: x[..., i] = (q[..., i] - zero[..., g]) * scale[..., g],
    where number i of a row is in group g = i // (k / groups).

    `quantized` [..., k / 2] packs two neighbouring numbers into a byte, the first one
    in the lower half. `scale` [..., groups] has the type of `x`, and `zero` [...,
    groups] holds numbers from 0 to 15 in bytes. Estimates of time and memory treat this
    conversion like `train.dequantize_rows`.
    """

    name = "train.dequantize_groups"
    FACTORS: ClassVar[str] = "[*a, g h], [*a, g], [*a, g] -> [*a, g s] keep s h"
    TORCH: ClassVar[str] = "dequantize_groups({*})"
    TORCH_MODULE: ClassVar[str] = "quantized_weights"

    quantized = operand_def(TensorType)
    scale = operand_def(TensorType)
    zero = operand_def(TensorType)
    x = result_def(TensorType)

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        x = shape_of(self.x)
        if not x or x[-1] % 2:
            raise VerifyException(
                f"{self.name}: x has shape {list(x)}; expected rows of an even number of "
                f"elements"
            )
        check_element_type(self, "quantized", self.quantized, PACKED)
        check_shape(self, "quantized", self.quantized, [*x[:-1], x[-1] // 2])
        check_groups(self, self.scale, self.zero, x, element_type(self.x))


CONVERSIONS = (DequantizeRowsOp, DequantizeGroupsOp)
"""The ops that give the numbers which rows of fewer bits stand for."""

OPS = [QuantizeRowsOp, DequantizeRowsOp, DequantizeGroupsOp]
