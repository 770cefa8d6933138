"""
Gradients of convolutions and pooling over any number of spatial dimensions.

Attributes give every window in full: stride, dilation and padding have no defaults. As
in ONNX, `pads` lists the padding before each dimension and then the padding after each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import DenseArrayBase, IntegerType, TensorType, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import I64, INTEGERS, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
)


def _numbers(attribute: DenseArrayBase[IntegerType]) -> tuple[int, ...]:
    return tuple(int(v) for v in attribute.get_values())


class WindowsOp(TrainOp):
    """Base of the gradients of ops that move a window over the spatial dimensions."""

    strides = prop_def(INTEGERS)
    dilations = prop_def(INTEGERS)
    pads = prop_def(INTEGERS)

    @property
    def steps(self) -> tuple[int, ...]:
        """The stride along each spatial dimension."""
        return _numbers(self.strides)

    @property
    def spacing(self) -> tuple[int, ...]:
        """The dilation along each spatial dimension."""
        return _numbers(self.dilations)

    @property
    def margins(self) -> tuple[tuple[int, int], ...]:
        """The padding before and after each spatial dimension."""
        flat = _numbers(self.pads)
        half = len(flat) // 2
        return tuple(zip(flat[:half], flat[half:], strict=True))

    def _verify_windows(
        self,
        source: SSAValue,
        windowed: SSAValue,
        kernel: Sequence[int],
        *,
        ceil: bool = False,
    ) -> None:
        """
        Raises VerifyException unless the attributes of the window are valid, and the
        spatial sizes of `source`, which the window moves over, fit the sizes of
        `windowed`, the result. With `ceil`, the number of windows may be rounded up.
        """
        before, after = shape_of(source), shape_of(windowed)
        rank = len(kernel)
        if len(before) != rank + 2 or len(after) != rank + 2:
            raise VerifyException(
                f"{self.name}: a window of {rank} dimensions needs tensors of "
                f"{rank + 2}, got {len(before)} and {len(after)}"
            )
        lengths = {
            "strides": (self.strides, rank, 1),
            "dilations": (self.dilations, rank, 1),
            "pads": (self.pads, 2 * rank, 0),
        }
        for name, (values, length, least) in lengths.items():
            numbers = values.get_values()
            if len(numbers) != length or min(numbers, default=least) < least:
                raise VerifyException(
                    f"{self.name}: {name} must be {length} numbers of at least {least}"
                )
        for axis in range(rank):
            size = before[2 + axis] + sum(self.margins[axis])
            free = size - (kernel[axis] - 1) * self.spacing[axis] - 1
            counts = {free // self.steps[axis] + 1}
            if ceil:
                counts.add(-(-free // self.steps[axis]) + 1)
            if after[2 + axis] not in counts:
                raise VerifyException(
                    f"{self.name}: dimension {2 + axis} has size {after[2 + axis]} after "
                    f"windows moved over it, expected {min(counts)}"
                )


class ConvGradOp(WindowsOp):
    """
    Base of the gradients of a convolution. `group`, the number of groups of channels,
    is as in ONNX.
    """

    COST_CLASS: ClassVar[str] = "convolution"

    group = prop_def(I64)

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return self.group.value.data

    def _verify(self, x: SSAValue, weight: SSAValue, y: SSAValue) -> None:
        check_float(self, "weight", weight)
        sizes, kernel = shape_of(x), shape_of(weight)
        if len(kernel) < 3:
            raise VerifyException(f"{self.name}: weights need a dimension of space")
        self._verify_windows(x, y, kernel[2:])
        groups = self.groups
        if groups < 1 or kernel[0] % groups:
            raise VerifyException(
                f"{self.name}: {kernel[0]} output channels do not make {groups} groups"
            )
        per_group = (kernel[0], sizes[1] // groups, *kernel[2:])
        check_shape(self, "weight", weight, per_group)
        check_shape(self, "dy", y, (sizes[0], kernel[0], *shape_of(y)[2:]))
        for name, value in (("x", x), ("dy", y)):
            check_element_type(self, name, value, element_type(weight))


@irdl_op_definition
class ConvGradInputOp(ConvGradOp):
    """
    The gradient of `onnx.Conv` with respect to its input. The op takes `dy` `[N, M,
    ...]` and `weight` `[M, C / group, ...]`, and returns `dx` `[N, C, ...]`.
    """

    name = "train.conv_grad_input"
    FACTORS: ClassVar[str] = (
        "[n, g@groups m, *w], [g m, c, *k] -> [n, g c, *?] "
        "keep w k linear 0, 1 flops 2*n*g*m*c*w*k"
    )

    dy = operand_def(TensorType)
    weight = operand_def(TensorType)
    dx = result_def(TensorType)

    def verify_(self) -> None:
        self._verify(self.dx, self.weight, self.dy)


@irdl_op_definition
class ConvGradWeightOp(ConvGradOp):
    """
    The gradient of `onnx.Conv` with respect to its weights, summed over the batch. The
    op takes `x` `[N, C, ...]` and `dy` `[N, M, ...]`, and returns `dweight` `[M, C /
    group, ...]`.
    """

    name = "train.conv_grad_weight"
    FACTORS: ClassVar[str] = (
        "[n, g@groups c, *s], [n, g m, *w] -> [g m, c, *?k] "
        "keep s w linear 0, 1 flops 2*n*g*m*c*w*k"
    )

    x = operand_def(TensorType)
    dy = operand_def(TensorType)
    dweight = result_def(TensorType)

    def verify_(self) -> None:
        self._verify(self.x, self.dweight, self.dy)


class PoolGradOp(WindowsOp):
    """
    Base of the gradients of pooling. With `ceil_mode`, windows may reach beyond the
    padding at the end. Positions beyond the padding are ignored, in averages too.
    """

    kernel_shape = prop_def(INTEGERS)

    @property
    def kernel(self) -> tuple[int, ...]:
        """The size of the window in each spatial dimension."""
        return _numbers(self.kernel_shape)

    def _verify(self, x: SSAValue, dy: SSAValue) -> None:
        """
        Raises VerifyException unless the sizes of `dy` fit those of `x`, the pooling's
        input or the gradient of this input.
        """
        check_float(self, "dy", dy)
        self._verify_windows(x, dy, self.kernel, ceil=True)
        check_shape(self, "dy", dy, (*shape_of(x)[:2], *shape_of(dy)[2:]))
        check_element_type(self, "dx", x, element_type(dy))
        super().verify_()


@irdl_op_definition
class MaxPoolGradOp(PoolGradOp):
    """
    The gradient of `onnx.MaxPool`. Each element of `dy` is added at the position of its
    window's maximum in `x`. If several elements are equal to the maximum, the position
    is that of the first of these elements in row-major order.
    """

    name = "train.max_pool_grad"
    FACTORS: ClassVar[str] = "[n, c, *w], [n, c, *s] -> [n, c, *?] keep w s linear 0"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    dx = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dx": like("x")}

    def verify_(self) -> None:
        self._verify(self.x, self.dy)


@irdl_op_definition
class AveragePoolGradOp(PoolGradOp):
    """
    The gradient of `onnx.AveragePool`. Each element of `dy` is divided by the number of
    elements of its window, and the quotient is added to each of these elements. With
    `count_include_pad`, padding counts as elements.
    """

    name = "train.average_pool_grad"
    FACTORS: ClassVar[str] = "[n, c, *w] -> [n, c, *?] keep w linear 0"

    dy = operand_def(TensorType)
    count_include_pad = opt_prop_def(UnitAttr)
    dx = result_def(TensorType)

    def verify_(self) -> None:
        self._verify(self.dx, self.dy)

    def counts(self) -> list[list[int]]:
        """
        The number of counted elements of each window along each spatial dimension. The
        product of these numbers over the dimensions is the divisor of the window's sum.
        """
        sizes, windows = shape_of(self.dx)[2:], shape_of(self.dy)[2:]
        padded = self.count_include_pad is not None
        found: list[list[int]] = []
        for axis, (size, count) in enumerate(zip(sizes, windows, strict=True)):
            before, after = self.margins[axis]
            low, high = (-before, size + after) if padded else (0, size)
            found.append(
                [
                    sum(
                        low <= window * self.steps[axis] - before + tap < high
                        for tap in range(
                            0,
                            self.kernel[axis] * self.spacing[axis],
                            self.spacing[axis],
                        )
                    )
                    for window in range(count)
                ]
            )
        return found


OPS = [ConvGradInputOp, ConvGradWeightOp, MaxPoolGradOp, AveragePoolGradOp]
