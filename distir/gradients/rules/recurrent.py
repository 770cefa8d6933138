"""The gradient rule of recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.train_ops.recurrent import (
    GruGradOp,
    LstmGradOp,
    RecurrentGradOp,
    RnnGradOp,
)
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule, shape
from distir.program import describe
from distir.sharding.rules.recurrent import unusual_form


def _check(op: OnnxOp) -> None:
    """Raises DistIRError for a form that has no gradient."""
    reason = unusual_form(op)
    if reason is not None:
        raise DistIRError(
            f"{describe(op)} has no gradient with {reason}; write the layer out in "
            f"operators that have one"
        )


@gradient_rule("onnx.RNN", "onnx.GRU", "onnx.LSTM")
def recurrent(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """One op; operands that are left out count as zeros."""
    _check(op)
    x, w, r = op.operands[:3]
    batch_first = bool(op.attribute("layout"))
    directions, rows, hidden = shape(r)
    steps, batch = shape(x)[1::-1] if batch_first else shape(x)[:2]
    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    y = (steps, directions, batch, hidden)
    if batch_first:
        y = (batch, steps, directions, hidden)

    def known(value: SSAValue | None, sizes: Sequence[int]) -> SSAValue:
        """Returns the value, or zeros of that shape."""
        if value is not None:
            return value
        return build.onnx("Expand", build.scalar(0.0, x), build.integers(sizes))

    outputs: list[SSAValue | None] = [*gradients, None, None]
    given = [known(outputs[0], y), known(outputs[1], state), x, w, r]
    given += [known(op.input(3), (directions, 2 * rows)), known(op.input(5), state)]
    how: dict[str, Any] = {"direction": op.attribute("direction")}
    how["batch_first"] = batch_first
    made: RecurrentGradOp
    if op.name == "onnx.LSTM":
        cells = [known(op.input(6), state), known(outputs[2], state)]
        made = LstmGradOp(*cells, *given, **how)
    elif op.name == "onnx.GRU":
        how["linear_before_reset"] = bool(op.attribute("linear_before_reset"))
        made = GruGradOp(*given, **how)
    else:
        made = RnnGradOp(*given, **how)
    build.add(made)
    found: list[SSAValue | None] = [made.dx, made.dw, made.dr, made.db, None]
    found.append(made.dstart)
    if isinstance(made, LstmGradOp):
        found.append(made.dstart_cell)
    return [found[op.operand_position(i)] for i in range(len(op.operands))]
