"""
Adafactor: stores the second moments of rows and of columns, instead of one per element.
"""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float64Type
from xdsl.ir import Attribute, SSAValue

from distir.dialects.tensors import element_type
from distir.dialects.train_ops.adafactor import (
    AdafactorOp,
    FactoredDirectionOp,
    FactorSumsOp,
    SecondMomentOp,
)
from distir.gradients.parameter_update import ParameterUpdate, optimizer
from distir.gradients.rule import shape

BETA2_DECAY = -0.8
CLIP_THRESHOLD = 1.0
LEAST_SCALE = 1e-3
"""
The published settings: the exponent of the running means' weight, the largest root mean
square of a direction, and the least scale of a parameter.
"""


@optimizer("adafactor")
def adafactor(update: ParameterUpdate) -> SSAValue:
    """
    Adds a step of Adafactor and returns the new parameter. A parameter [..., m, n] has
    the states `row_var` [..., m, 1] and `col_var` [..., 1, n], and a vector has the
    state `variance`. Raises DistIRError for a parameter that holds several tensors of
    the source model.
    """
    update.check_one_tensor()
    is_matrix = len(shape(update.parameter)) > 1
    direction = _factored(update) if is_matrix else _elementwise(update)
    op = AdafactorOp(
        update.parameter,
        direction,
        update.squares(update.parameter),
        update.squares(direction),
        update.count,
        **update.decay,
        clip_threshold=CLIP_THRESHOLD,
        epsilon=LEAST_SCALE,
        count=float(max(prod(shape(update.parameter)), 1)),
        relative_step=update.options.relative_step,
    )
    return update.build.result(op)


def _factored(update: ParameterUpdate) -> SSAValue:
    """Returns the update direction for a parameter of two or more dimensions."""
    build = update.build
    *others, rows, columns = shape(update.parameter)
    sums = FactorSumsOp(update.gradient)
    build.add(sums)
    row = _moment(update, "row_var", (*others, rows, 1), sums.rows, columns)
    column = _moment(update, "col_var", (*others, 1, columns), sums.columns, rows)
    total = build.onnx("ReduceSum", row, build.integers([-2]), keepdims=1)
    op = FactoredDirectionOp(
        update.gradient,
        row,
        column,
        total,
        count=float(rows),
        epsilon=_epsilon(update),
    )
    return build.result(op)


def _elementwise(update: ParameterUpdate) -> SSAValue:
    """Returns the update direction for a vector or a number."""
    build = update.build
    sizes = shape(update.parameter)
    wide = update.state("variance", sizes=sizes)
    gradient = build.cast(update.gradient, wide)
    squares = build.onnx("Mul", gradient, gradient)
    op = SecondMomentOp(wide, squares, update.count, count=1.0, beta2_decay=BETA2_DECAY)
    moment = build.result(op)
    update.keep("variance", moment)
    least = build.scalar(_epsilon(update) ** 2, moment)
    root = build.onnx("Sqrt", build.onnx("Max", moment, least))
    return build.onnx("Div", gradient, root)


def _moment(
    update: ParameterUpdate,
    kind: str,
    sizes: tuple[int, ...],
    sums: SSAValue,
    count: int,
) -> SSAValue:
    """
    Returns the new running mean of squares, which is kept in the state `kind` of shape
    `sizes`. Each element of `sums` is a sum of `count` squares.
    """
    op = SecondMomentOp(
        update.state(kind, sizes=sizes),
        sums,
        update.count,
        count=float(count),
        beta2_decay=BETA2_DECAY,
    )
    moment = update.build.result(op)
    update.keep(kind, moment)
    return moment


def _epsilon(update: ParameterUpdate) -> float:
    """
    Returns the square root of the smallest second moment that the optimizer assumes:
    the user's option or, as in PyTorch, the machine epsilon of the parameter's type.
    """
    if update.options.epsilon is not None:
        return update.options.epsilon
    return _machine_epsilon(element_type(update.parameter))


def _machine_epsilon(type_: Attribute) -> float:
    match type_:
        case BFloat16Type():
            return 2.0**-7
        case Float16Type():
            return float(np.finfo(np.float16).eps)
        case Float64Type():
            return float(np.finfo(np.float64).eps)
        case _:
            return float(np.finfo(np.float32).eps)
