"""
Ops that keep activations in the host's memory between the forward pass and the backward
pass.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.host import HostType
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import Derived, TrainOp, Types


def _on_host(value: SSAValue) -> TensorType:
    return TensorType(HostType(element_type(value)), shape_of(value))


def _on_device(value: SSAValue) -> TensorType:
    element = element_type(value)
    if not isinstance(element, HostType):
        raise VerifyException(
            f"train.fetch brings back what train.offload gives, not {value.type}"
        )
    return TensorType(element.element, shape_of(value))


@irdl_op_definition
class OffloadOp(TrainOp):
    """Copies a tensor from its device to the host's memory."""

    name = "train.offload"
    IS_COPY: ClassVar[bool] = True
    FACTORS: ClassVar[str] = "[*d] -> [*d]"
    TORCH: ClassVar[str] = "offload({0})"
    TORCH_MODULE: ClassVar[str] = "offload"

    x = operand_def(TensorType)
    y = result_def(TensorType)

    TYPES: ClassVar[Types] = {"y": Derived("x", _on_host)}


@irdl_op_definition
class FetchOp(TrainOp):
    """Copies a tensor from the host's memory back to its device."""

    name = "train.fetch"
    IS_COPY: ClassVar[bool] = True
    FACTORS: ClassVar[str] = "[*d] -> [*d]"
    TORCH: ClassVar[str] = "fetch({0})"
    TORCH_MODULE: ClassVar[str] = "offload"

    x = operand_def(TensorType)
    y = result_def(TensorType)

    TYPES: ClassVar[Types] = {"y": Derived("x", _on_device)}


OPS = [OffloadOp, FetchOp]
