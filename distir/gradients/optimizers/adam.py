"""Adam and AdamW."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.train_ops.optimizers import AdamFamilyOp, AdamOp, AdamWOp
from distir.gradients.parameter_update import ParameterUpdate, optimizer


@optimizer("adam", beta2=0.999, epsilon=1e-8)
def adam(update: ParameterUpdate) -> SSAValue:
    """
    Adds a step of Adam and returns the new parameter. A parameter has the states
    `exp_avg` and `exp_avg_sq`.
    """
    return _step(update, AdamOp)


@optimizer("adamw", beta2=0.999, epsilon=1e-8, weight_decay=0.01)
def adamw(update: ParameterUpdate) -> SSAValue:
    """
    Adds a step of AdamW and returns the new parameter. A parameter has the states
    `exp_avg` and `exp_avg_sq`.
    """
    return _step(update, AdamWOp)


def _step(update: ParameterUpdate, kind: type[AdamFamilyOp]) -> SSAValue:
    op = kind(
        update.parameter,
        update.gradient,
        update.state("exp_avg"),
        update.state("exp_avg_sq", signed=False),
        update.count,
        **update.decay,
        **update.betas,
        epsilon=update.number("epsilon"),
    )
    update.build.add(op)
    update.keep("exp_avg", op.new_exp_avg)
    update.keep("exp_avg_sq", op.new_exp_avg_sq, signed=False)
    return op.new_parameter
