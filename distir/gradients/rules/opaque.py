"""The gradient rule of opaque modules."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from distir.dialects.train_ops.opaque import OpaqueGradOp, OpaqueOp
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule
from distir.gradients.rules.arithmetic import is_wanted
from distir.sharding.opaque_rule import parse_opaque_rule

_TIMES = 3
"""
The ratio of the gradient's work to the work of the module: the module runs once more,
and its backward multiplies by each matrix twice.
"""


@gradient_rule("train.opaque")
def opaque(op: OpaqueOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of an opaque module: PyTorch's autograd computes the gradients of all
    inputs that can have one.
    """
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    wanted = [i for i, value in enumerate(op.inputs) if is_wanted(value)]
    rule = parse_opaque_rule(op.rule.data).gradient(given, wanted)
    work = op.gradient_flops or op.flops
    flops = None
    if work is not None:
        flops = work if op.gradient_flops else StringAttr(_thrice(work.data))
    made = OpaqueGradOp(
        [gradient for gradient in gradients if gradient is not None],
        op.inputs,
        op.counter,
        op.coordinates,
        **op.declared(
            rule=str(rule),
            flops=flops,
            workspace=op.gradient_workspace or op.workspace,
            sent=None if op.sent is None else StringAttr(_thrice(op.sent.data)),
        ),
        wrt=wanted,
        given=given,
        outputs=[op.inputs[i].type for i in wanted],
    )
    found: list[SSAValue | None] = [None] * len(op.operands)
    for i, value in zip(wanted, build.add(made).results, strict=True):
        found[i] = value
    return found


def _thrice(work: str) -> str:
    """
    Returns the work `work`, a text that is a sum of products, multiplied by `_TIMES`.
    """
    return " + ".join(f"{_TIMES}*{term.strip()}" for term in work.split("+"))
