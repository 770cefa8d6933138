"""
Lion: moves parameters by the sign of a momentum. Its states take half the memory of
Adam's states.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.train_ops.lion import LionOp
from distir.gradients.parameter_update import ParameterUpdate, optimizer


@optimizer("lion", counts_steps=False, beta2=0.99)
def lion(update: ParameterUpdate) -> SSAValue:
    """
    Adds a step of Lion and returns the new parameter. A parameter has the state
    `exp_avg`.
    """
    op = LionOp(
        update.parameter,
        update.gradient,
        update.state("exp_avg"),
        **update.decay,
        **update.betas,
    )
    update.build.add(op)
    update.keep("exp_avg", op.new_exp_avg)
    return op.new_parameter
