"""Facts about values before a program runs: constants, and ops that keep them."""

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


def direct_constant(value: SSAValue) -> npt.NDArray[Any] | None:
    """
    Returns the value of an `onnx.Constant`; None for a value that any other op computes.
    """
    owner = value.owner
    if isinstance(owner, OnnxOp) and owner.name == "onnx.Constant":
        return owner.attribute("value")
    return None


def constant_of(value: SSAValue) -> npt.NDArray[Any] | None:
    """
    Returns the value of an `onnx.Constant`, also behind changes of layout; None for other
    values.
    """
    while isinstance(value, OpResult) and keeps_value(value.owner):
        value = value.owner.operands[0]
    array = direct_constant(value)
    return None if array is None else np.asarray(array)


def keeps_value(op: Operation) -> bool:
    """Whether an op's result is its only operand, possibly with another layout."""
    return _kind_keeps_value(type(op)) and not is_per_rank(op)


@cache
def _kind_keeps_value(kind: type[Operation]) -> bool:
    """
    Whether ops of that kind keep the value of their operand; cached, as it is asked very
    often.
    """
    if issubclass(kind, CollectiveOp):
        return kind.KEEPS_VALUE
    kinds = (dist.ReshardOp, dist.ConstrainOp, dist.SendOp)
    return issubclass(kind, kinds) or kind.name == "onnx.Identity"


def draws_random_numbers(op: Operation) -> bool:
    """Whether an op's results differ from run to run (Dropout only in training)."""
    if not isinstance(op, OnnxOp) or op.SCHEMA.name not in RANDOM:
        return False
    if op.SCHEMA.name != "Dropout":
        return True
    mode = op.input(2)
    if mode is None:
        return False
    known = constant_of(mode)
    return known is None or bool(known.any())
