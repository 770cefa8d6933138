"""The gradient rules of recurrent layers and of selective state spaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import Operation, SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.recurrent import (
    GatheredGruGradOp,
    GatheredGruOp,
    GatheredLayerOp,
    GatheredLstmGradOp,
    GatheredLstmOp,
    GatheredRnnGradOp,
    GatheredRnnOp,
    GruGradOp,
    LstmGradBase,
    LstmGradOp,
    RecurrentGradOp,
    RnnGradOp,
)
from distir.dialects.train_ops.selective_scan import (
    SelectiveScanGradOp,
    SelectiveScanOp,
)
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule, shape
from distir.program import describe
from distir.sharding.rules.recurrent import unusual_form

_OF_ONNX: dict[str, type[RecurrentGradOp]] = {
    "onnx.RNN": RnnGradOp,
    "onnx.GRU": GruGradOp,
    "onnx.LSTM": LstmGradOp,
}
_OF_GATHERED: dict[type[Operation], type[RecurrentGradOp]] = {
    GatheredRnnOp: GatheredRnnGradOp,
    GatheredGruOp: GatheredGruGradOp,
    GatheredLstmOp: GatheredLstmGradOp,
}


def _check(op: OnnxOp) -> None:
    """Raises DistIRError if the layer uses an option for which there is no gradient."""
    reason = unusual_form(op)
    if reason is not None:
        raise DistIRError(
            f"{describe(op)} has no gradient with {reason}; write the layer out in "
            f"operators that have one"
        )


def _gradient(
    made: type[RecurrentGradOp],
    weights: Sequence[SSAValue | None],
    starts: Sequence[SSAValue | None],
    outputs: Gradients,
    build: GradientBuilder,
    **how: Any,
) -> RecurrentGradOp:
    """
    Appends the gradient op of class `made` for a recurrent layer, and returns the op.
    `weights` are the layer's x, w, r and b, `starts` its initial states, and `outputs`
    the gradients of its results. A None among these values stands for zeros. `how` has
    the attributes of the op.
    """
    x, w, r, b = weights
    assert x is not None and w is not None and r is not None
    directions, rows, hidden = shape(r)
    steps, batch = shape(x)[1::-1] if how["batch_first"] else shape(x)[:2]
    state, y = (directions, batch, hidden), (steps, directions, batch, hidden)
    if how["batch_first"]:
        state, y = (batch, directions, hidden), (batch, steps, directions, hidden)

    def known(value: SSAValue | None, sizes: Sequence[int]) -> SSAValue:
        """Returns `value`, or zeros of shape `sizes` if `value` is None."""
        if value is not None:
            return value
        return build.onnx("Expand", build.scalar(0.0, x), build.integers(sizes))

    given = [*outputs, None, None]
    operands = [known(given[0], y), known(given[1], state), x, w, r]
    operands += [known(b, (directions, 2 * rows)), known(starts[0], state)]
    if issubclass(made, LstmGradBase):
        operands = [known(starts[1], state), known(given[2], state), *operands]
    new = made(*operands, **how)
    build.add(new)
    return new


@gradient_rule(*_OF_ONNX)
def recurrent(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """Gradient rule of RNN, GRU and LSTM: one op. Omitted operands count as zeros."""
    _check(op)
    how = {"direction": op.attribute("direction")}
    how["batch_first"] = bool(op.attribute("layout"))
    if op.name == "onnx.GRU":
        how["linear_before_reset"] = bool(op.attribute("linear_before_reset"))
    weights = [*op.operands[:3], op.input(3)]
    starts = [op.input(5), op.input(6)]
    made = _gradient(_OF_ONNX[op.name], weights, starts, gradients, build, **how)
    found: list[SSAValue | None] = [made.dx, made.dw, made.dr, made.db, None]
    found += _of_starts(made)
    return [found[op.operand_position(i)] for i in range(len(op.operands))]


@gradient_rule("train.gathered_rnn", "train.gathered_gru", "train.gathered_lstm")
def gathered(
    op: GatheredLayerOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of recurrent layers whose hidden features are split over devices: one
    op, which gathers states in the same way as the layer.
    """
    how = {"direction": op.direction, "batch_first": op.batch_first is not None}
    if isinstance(op, GatheredGruOp):
        how["linear_before_reset"] = op.linear_before_reset is not None
    weights = [op.x, op.w, op.r, op.b]
    starts = [*op.start, None, None]
    made = _gradient(_OF_GATHERED[type(op)], weights, starts, gradients, build, **how)
    found = [made.dx, made.dw, made.dr]
    found += [made.db] * (op.b is not None)
    return [*found, *_of_starts(made)[: len(op.start)]]


def _of_starts(made: RecurrentGradOp) -> list[SSAValue]:
    """Returns the gradients of the layer's initial states."""
    cells = [made.dstart_cell] if isinstance(made, LstmGradBase) else []
    return [made.dstart, *cells]


@gradient_rule("train.selective_scan")
def selective_scan(
    op: SelectiveScanOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of `train.selective_scan`: one op, which takes dy and the operands.
    """
    (dy,) = gradients
    assert dy is not None
    return build.add(SelectiveScanGradOp(dy, *op.operands)).results
