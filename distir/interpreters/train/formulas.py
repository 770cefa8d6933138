"""Computes ops that are defined by formulas, on arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from distir.dialects.formula import Expr
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.train import Train
from distir.dialects.train_ops.base import FormulaOp
from distir.interpreters.kernels import erf
from distir.interpreters.train.arithmetic import Array, computes


def _sqrt(x: Any) -> Any:
    """
    Returns square roots. The root of a Python number is a Python number, so the root
    adapts to any array type.
    """
    return math.sqrt(x) if type(x) is float else np.sqrt(x)


def _smaller(x: Any, other: Any) -> Any:
    """
    Returns the smaller elements. For two Python numbers, the result is a Python number,
    so that it adapts to any array type.
    """
    both = type(x) is float and type(other) is float
    return min(x, other) if both else np.minimum(x, other)


def _larger(x: Any, other: Any) -> Any:
    """
    Returns the larger elements. For two Python numbers, the result is a Python number,
    so that it adapts to any array type.
    """
    both = type(x) is float and type(other) is float
    return max(x, other) if both else np.maximum(x, other)


def _number(x: Array) -> int | float:
    return np.asarray(x).item()


def _one_hot(labels: Array, like: Array) -> Array:
    return labels[..., None] == np.arange(like.shape[-1])


def _chosen(x: Array, labels: Array) -> Array:
    held = (labels >= 0) & (labels < x.shape[-1])
    places = np.where(held, labels, 0)[..., None]
    return np.where(held, np.take_along_axis(x, places, -1)[..., 0], 0)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "negative": operator.neg,
    "greater": operator.gt,
    "not_equal": operator.ne,
    "absolute": np.abs,
    "minimum": _smaller,
    "maximum": _larger,
    "sign": np.sign,
    "where": np.where,
    "exp": np.exp,
    "log": np.log,
    "sqrt": _sqrt,
    "tanh": np.tanh,
    "erf": erf,
    "choose": _chosen,
    "one_hot": _one_hot,
    "number": _number,
}


def _value(step: Expr, given: list[Any]) -> Any:
    """
    Returns the value of one step of a formula. `given` holds the values of the step's
    inputs.
    """
    function = _ELEMENTWISE.get(step.function)
    if function is not None:
        return function(*given)
    x = np.asarray(given[0])
    match step.function, step.axes:
        case "sum", axes:
            return x.sum(axes, keepdims=step.keepdims)
        case "mean", axes:
            return x.mean(axes, keepdims=step.keepdims)
        case "max", axes:
            return x.max(axes, keepdims=step.keepdims, initial=-np.inf)
        case "cast", _:
            type_ = numpy_dtype(step.type.element_type)
            return x if type_.itemsize == 2 else x.astype(type_)
        case "expand", tuple(axes):
            return np.expand_dims(x, axes)
        case "divide_axis", (axis,):
            return x.reshape(*x.shape[:axis], step.parts, -1, *x.shape[axis + 1 :])
        case "join_axes", (axis,):
            return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
        case function, _:
            raise NotImplementedError(function)


def evaluated(op: FormulaOp, *operands: Array) -> tuple[Array, ...]:
    """Returns the results of `op`, which is defined by a formula, on `operands`."""
    formula = op.record
    values: dict[Expr, Any] = dict(zip(formula.operands, operands, strict=True))
    for step in formula.steps:
        given = [values[v] if isinstance(v, Expr) else v for v in step.inputs]
        values[step] = _value(step, given)
    return tuple(values[expr] for expr in formula.results[: len(op.results)])


for _op in Train.operations:
    if issubclass(_op, FormulaOp):
        computes(_op)(evaluated)
