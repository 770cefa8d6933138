"""
The types of gradients: a gradient has the type of its value, or f32 elements if it
belongs to a 16-bit parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import BFloat16Type, Float16Type, TensorType, UnitAttr, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from distir.dialects.dist_attributes import REDUCE_LATE, ROLE
from distir.dialects.onnx_ops.values import numpy_dtype, onnx_element_type
from distir.gradients.rule import GradientBuilder


@dataclass(frozen=True)
class GradientTypes:
    """
    Decides the types of gradients. A gradient has the type of the value to which it
    belongs. With `wide`, gradients of 16-bit parameters have f32 elements instead, in
    all functions. Each contribution to such a gradient is cast to f32 where it is
    computed, and contributions are added and reduced in f32.
    """

    wide: bool = False

    def of(self, value: SSAValue) -> Attribute:
        """Returns the type of the gradient of the forward value `value`."""
        type_ = value.type
        if not self.wide or not isinstance(type_, TensorType):
            return type_
        if isinstance(type_.element_type, Float16Type | BFloat16Type) and _is_parameter(
            value
        ):
            return TensorType(f32, type_.get_shape())
        return type_

    def cast(
        self, gradient: SSAValue, value: SSAValue, build: GradientBuilder
    ) -> SSAValue:
        """
        Returns `gradient`, a gradient of `value`, cast to the type that gradients of
        `value` have.
        """
        type_ = self.of(value)
        if gradient.type == type_:
            return gradient
        assert isinstance(type_, TensorType)
        cast = build.onnx("Cast", gradient, to=onnx_element_type(type_.element_type))
        if type_.element_type == f32 and isinstance(cast.owner, Operation):
            cast.owner.attributes[REDUCE_LATE] = UnitAttr()
        return cast

    def zeros(self, value: SSAValue, build: GradientBuilder) -> SSAValue:
        """
        Returns a zero gradient of `value`, broadcast from a scalar to keep the text of
        the program short.
        """
        type_ = self.of(value)
        assert isinstance(type_, TensorType)
        zero = build.constant(np.zeros((), numpy_dtype(type_.element_type)))
        return build.onnx("Expand", zero, build.integers(type_.get_shape()))


def _is_parameter(value: SSAValue) -> bool:
    if not isinstance(value, BlockArgument):
        return False
    function = value.owner.parent_op()
    if not isinstance(function, FuncOp) or function.arg_attrs is None:
        return False
    return ROLE.of(function.arg_attrs.data[value.index].data) == "parameter"
