"""Stochastic gradient descent, with or without momentum."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.train_ops.optimizers import SgdOp
from distir.gradients.parameter_update import ParameterUpdate, optimizer


@optimizer("sgd", counts_steps=False)
def sgd(update: ParameterUpdate) -> SSAValue:
    """
    Adds a step of SGD and returns the new parameter. With momentum, a parameter has the
    state `momentum`.
    """
    momentum = update.number("momentum")
    op = SgdOp(
        update.parameter,
        update.gradient,
        update.state("momentum") if momentum > 0 else None,
        **update.decay,
        momentum=momentum if momentum > 0 else None,
    )
    update.build.add(op)
    if op.new_buffer is not None:
        update.keep("momentum", op.new_buffer)
    return op.new_parameter
