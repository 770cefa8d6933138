"""
Optimizer states of 8 bits per element: blocks of consecutive elements of the last
dimension, each with a scale (Dettmers et al. 2022, "8-bit Optimizers via Block-wise
Quantization"). Devices that hold whole blocks need no communication.
"""

from __future__ import annotations

from typing import Any, ClassVar

from xdsl.dialects.builtin import (
    IntegerType,
    Signedness,
    TensorType,
    UnitAttr,
    f32,
)
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import shape_of, tensor_of
from distir.dialects.train_ops.base import (
    I64,
    Operands,
    Properties,
    TrainOp,
)
from distir.dialects.train_ops.checks import check_float, check_shape, check_type

CODE = IntegerType(8, Signedness.UNSIGNED)
"""The element type of codes."""


def code_values(is_signed: bool) -> list[float]:
    """
    Returns the 256 numbers that codes stand for, in ascending order. A number of
    exponent e, from 0 to 6, is 10 ** -e times a fraction between 0.1 and 1. Larger
    numbers have more fractions: 2 ** (6 - e) for exponent e, or twice as many without
    signs. 1 is a number too. The smallest magnitude is zero with signs, and 1e-7
    without signs, because a second moment of zero would make the next step very long
    (Li et al. 2023, "Memory Efficient Optimizers with 4-bit States").
    """
    found = [0.0 if is_signed else 1e-7, 1.0]
    for exponent in range(7):
        count = 2 ** (6 - exponent) * (1 if is_signed else 2)
        width = 0.9 / count
        for i in range(count):
            value = (0.1 + width * (i + 0.5)) * 10.0**-exponent
            found += [value, -value] if is_signed else [value]
    return sorted(found)


def _scales_type(shape: tuple[int, ...], block: int) -> TensorType[Any]:
    """Returns the type of the scales of a tensor's blocks."""
    last = shape[-1]
    return tensor_of(f32, (*shape[:-1], last if last < 0 else last // block))


class _QuantizedOp(TrainOp):
    """
    Base of conversions between a state and its codes. `block` is the number of elements
    that share a scale.
    """

    FACTORS: ClassVar[str] = ""

    block = prop_def(I64)
    signed = opt_prop_def(UnitAttr)

    def _verify(self, state: SSAValue, codes: SSAValue, scales: SSAValue) -> None:
        check_float(self, "state", state)
        shape, block = shape_of(state), self.block.value.data
        if not shape or block < 1 or (shape[-1] > 0 and shape[-1] % block):
            raise VerifyException(
                f"{self.name}: the last of the sizes {list(shape)} is no multiple of "
                f"block, {block}"
            )
        check_shape(self, "codes", codes, shape)
        check_type(self, "codes", codes, tensor_of(CODE, shape))
        check_type(self, "scales", scales, _scales_type(shape, block))


@irdl_op_definition
class QuantizeStateOp(_QuantizedOp):
    """
    Converts a state [..., n] to codes [..., n] and scales [..., n / block]. A code
    stands for one of 256 numbers between -1 and 1, or without `signed` between 0 and 1
    (`code_values`). An element is approximately the number that its code stands for,
    times the scale of its block. The scale of a block is the block's largest absolute
    value, and each element gets the nearest code.
    """

    name = "train.quantize_state"
    FACTORS: ClassVar[str] = "[*a, n b@block] -> [*a, n b], [*a, n] keep b"
    TORCH: ClassVar[str] = "quantize({0}, {block}, {signed:flag})"
    TORCH_MODULE: ClassVar[str] = "quantized_states"

    state = operand_def(TensorType)
    codes = result_def(TensorType)
    scales = result_def(TensorType)

    @classmethod
    def result_types_of(cls, operands: Operands, properties: Properties) -> Any:
        state, block = operands["state"], properties["block"]
        assert isinstance(state, SSAValue) and block is not None
        shape = shape_of(state)
        size: Any = block
        return {
            "codes": tensor_of(CODE, shape),
            "scales": _scales_type(shape, size.value.data),
        }

    def verify_(self) -> None:
        self._verify(self.state, self.codes, self.scales)


@irdl_op_definition
class DequantizeStateOp(_QuantizedOp):
    """
    Converts codes [..., n] and scales [..., n / block] back to a state [..., n]: the
    number that each code stands for, times the scale of the code's block.
    """

    name = "train.dequantize_state"
    FACTORS: ClassVar[str] = "[*a, n b@block], [*a, n] -> [*a, n b] keep b"
    TORCH: ClassVar[str] = "dequantize({*}, {block}, {signed:flag}, {result:dtype})"
    TORCH_MODULE: ClassVar[str] = "quantized_states"

    codes = operand_def(TensorType)
    scales = operand_def(TensorType)
    state = result_def(TensorType)

    def verify_(self) -> None:
        self._verify(self.state, self.codes, self.scales)


OPS = [QuantizeStateOp, DequantizeStateOp]
