"""Facts about values that are known before a program runs, such as constants."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import Operation, OpResult, SSAValue

from distir.dialects import dist
from distir.dialects.collective_ops.base import CollectiveOp, is_per_rank
from distir.dialects.onnx import RANDOM
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.opaque import OpaqueBase


def direct_constant(value: SSAValue) -> npt.NDArray[Any] | None:
    """
    Returns the array of an `onnx.Constant`, or None if another op computes the value.
    """
    if not is_direct_constant(value):
        return None
    owner = value.owner
    assert isinstance(owner, OnnxOp)
    return owner.attribute("value")


def is_direct_constant(value: SSAValue) -> bool:
    """
    Whether `value` is the result of an `onnx.Constant`. The constant's array is not
    read.
    """
    return isinstance(value, OpResult) and value.op.name == "onnx.Constant"


def constant_of(value: SSAValue) -> npt.NDArray[Any] | None:
    """
    Returns the array of an `onnx.Constant`, looking through ops that only change the
    layout. Returns None if `value` does not come from an `onnx.Constant`.
    """
    while isinstance(value, OpResult) and keeps_value(value.owner):
        value = value.owner.operands[0]
    array = direct_constant(value)
    return None if array is None else np.asarray(array)


def keeps_value(op: Operation) -> bool:
    """
    Whether an op's result has the value of its only operand, possibly in another
    layout.
    """
    return _kind_keeps_value(type(op)) and not is_per_rank(op)


@cache
def _kind_keeps_value(kind: type[Operation]) -> bool:
    """
    Whether ops of class `kind` return their operand's value. The result is cached,
    because passes need it very often.
    """
    if issubclass(kind, CollectiveOp):
        return kind.KEEPS_VALUE
    kinds = (dist.ReshardOp, dist.ConstrainOp, dist.SendOp)
    return issubclass(kind, kinds) or kind.name == "onnx.Identity"


def draws_random_numbers(op: Operation) -> bool:
    """
    Whether an op's results differ from run to run. This holds for a Dropout, unless its
    training mode is known to be off, and for an opaque module, unless a counter
    determines its random numbers.
    """
    if isinstance(op, OpaqueBase):
        return op.draws is not None and op.counter is None
    if not isinstance(op, OnnxOp) or op.SCHEMA.name not in RANDOM:
        return False
    if op.SCHEMA.name != "Dropout":
        return True
    mode = op.input(2)
    if mode is None:
        return False
    known = constant_of(mode)
    return known is None or bool(known.any())
