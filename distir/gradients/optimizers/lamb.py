"""
LAMB: steps of Adam, scaled by the ratio of the norm of each parameter to the norm of
its step.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.train_ops.lamb import LambDirectionOp, LambOp
from distir.gradients.parameter_update import ParameterUpdate, optimizer


@optimizer("lamb", beta2=0.999, epsilon=1e-6, weight_decay=0.01)
def lamb(update: ParameterUpdate) -> SSAValue:
    """
    Adds a step of LAMB and returns the new parameter. A parameter has the states
    `exp_avg` and `exp_avg_sq`. Norms are of whole parameters, so devices add up the
    squares of the parts of a parameter. Raises DistIRError for a parameter that holds
    several tensors of the source model.
    """
    update.check_one_tensor()
    op = LambDirectionOp(
        update.parameter,
        update.gradient,
        update.state("exp_avg"),
        update.state("exp_avg_sq", signed=False),
        update.count,
        weight_decay=update.number("weight_decay"),
        **update.betas,
        epsilon=update.number("epsilon"),
    )
    update.build.add(op)
    update.keep("exp_avg", op.new_exp_avg)
    update.keep("exp_avg_sq", op.new_exp_avg_sq, signed=False)
    moved = LambOp(
        update.parameter,
        op.direction,
        update.squares(update.parameter),
        update.squares(op.direction),
        learning_rate=update.options.learning_rate,
    )
    return update.build.result(moved)
