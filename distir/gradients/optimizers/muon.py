"""Muon for the matrices of matrix products, and AdamW for all other parameters."""

from __future__ import annotations

from fnmatch import fnmatchcase
from math import sqrt

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp
from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.values import LOW_PRECISION_FLOATS, onnx_element_type
from distir.dialects.train_ops.experts import GroupedProductOp
from distir.dialects.train_ops.muon import (
    COEFFICIENTS,
    MuonMomentumOp,
    MuonOp,
    OrthogonalizeOp,
)
from distir.gradients.parameter_update import (
    ParameterUpdate,
    optimizer,
    optimizer_called,
)
from distir.gradients.rule import shape
from distir.program import functions

STEPS = 5
"""The number of Newton-Schulz steps."""

_FORMS = ("onnx.Cast", "onnx.Transpose", "onnx.Identity")
"""Ops whose result is another form of a matrix."""

_PRODUCTS = ("onnx.MatMul", "onnx.Gemm", GroupedProductOp.name)


@optimizer("muon", momentum=0.95, weight_decay=0.1, beta2=0.999, epsilon=1e-7)
def muon(update: ParameterUpdate) -> SSAValue:
    """
    Adds a step of Muon and returns the new parameter. A matrix, or each matrix of a
    stack of experts, has the state `momentum`. AdamW updates three kinds of parameters
    instead: parameters that are not a factor of a matrix product, tables in which rows
    are looked up, and parameters named in the option `by_adamw`. Raises DistIRError for
    a matrix that holds several tensors of the source model.
    """
    if not _is_matrix(update):
        adamw = optimizer_called("adamw")
        update.defaults = {**adamw.defaults, "weight_decay": 0.1}
        return adamw.update(update)
    update.check_one_tensor()
    build = update.build
    momentum = MuonMomentumOp(
        update.state("momentum"),
        update.gradient,
        momentum=update.number("momentum"),
        nesterov=True,
    )
    build.add(momentum)
    update.keep("momentum", momentum.new_buffer)
    direction = momentum.direction
    if update.options.orthogonalize_dtype == "bf16":
        to = onnx_element_type(LOW_PRECISION_FLOATS["bf16"])
        direction = build.onnx("Cast", direction, to=to)
    a, b, c = COEFFICIENTS
    op = OrthogonalizeOp(
        direction, steps=STEPS, a=a, b=b, c=c, epsilon=update.number("epsilon")
    )
    moved = MuonOp(
        update.parameter, build.result(op), **update.decay, scale=_scale(update)
    )
    return build.result(moved)


def _scale(update: ParameterUpdate) -> float:
    """
    Returns the factor by which the learning rate is multiplied. The factor depends on
    the shape of the matrix.
    """
    *_, rows, columns = shape(update.parameter)
    if update.options.muon_scale == "original":
        return sqrt(max(1.0, rows / columns))
    return 0.2 * sqrt(max(rows, columns))


def _is_matrix(update: ParameterUpdate) -> bool:
    """
    Whether the parameter holds one or more matrices that are factors of matrix
    products, and is not a table in which rows are looked up.
    """
    if any(fnmatchcase(update.name, p) for p in update.options.by_adamw):
        return False
    if len(shape(update.parameter)) not in (2, 3):
        return False
    step = update.step
    argument = step.block.args[step.names.index(update.name)]
    kinds = _uses(argument, step.module)
    return not kinds.isdisjoint(_PRODUCTS) and "onnx.Gather" not in kinds


def _uses(value: SSAValue, module: ModuleOp) -> set[str]:
    """
    Returns the names of the ops that use `value` or a view of `value`, also in called
    functions.
    """
    by_name = functions(module)
    found, pending, seen = set[str](), [value], set[SSAValue]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        for use in value.uses:
            op = use.operation
            if isinstance(op, CallOp):
                pending.append(by_name[op.callee.string_value()].args[use.index])
            elif op.name in _FORMS:
                pending += op.results
            elif op.name != "onnx.Gather" or use.index == 0:
                found.add(op.name)
    return found
