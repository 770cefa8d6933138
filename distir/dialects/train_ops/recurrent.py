"""Gradients of recurrent layers."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, TensorType, UnitAttr
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
)

DIRECTIONS = ("forward", "reverse", "bidirectional")


class RecurrentGradOp(TrainOp):
    """
    Base of the gradients of `onnx.RNN`, `onnx.GRU` and `onnx.LSTM`, of tanh and sigmoid, over
    T steps, a batch of B, D directions, H hidden features and G gates:

        x: [T, B, features]        y: [T, D, B, H]        h: [D, B, H]
        w: [D, G * H, features]    r: [D, G * H, H]       b: [D, 2 * G * H]

    from the gradients of all outputs (`dy`) and of the last states to those of the input,
    the weights, the biases and the initial states. With `batch_first`, as ONNX's `layout`,
    x is [B, T, features], y [B, T, D, H] and h [B, D, H]. Gates are in ONNX's order. The
    forward is computed again on the way.
    """

    GATES: ClassVar[int]

    dy = operand_def(TensorType)
    dh = operand_def(TensorType)
    x = operand_def(TensorType)
    w = operand_def(TensorType)
    r = operand_def(TensorType)
    b = operand_def(TensorType)
    h = operand_def(TensorType)
    direction = prop_def(StringAttr)
    batch_first = opt_prop_def(UnitAttr)
    dx = result_def(TensorType)
    dw = result_def(TensorType)
    dr = result_def(TensorType)
    db = result_def(TensorType)
    dstart = result_def(TensorType)

    TYPES: ClassVar[Types] = {
        "dx": like("x"),
        "dw": like("w"),
        "dr": like("r"),
        "db": like("b"),
        "dh": like("h"),
        "dstart": like("h"),
    }

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        if self.direction.data not in DIRECTIONS:
            raise VerifyException(
                f'{self.name}: direction is "{self.direction.data}", expected one of '
                f"{', '.join(DIRECTIONS)}"
            )
        for name in ("x", "w", "r"):
            if len(shape_of(getattr(self, name))) != 3:
                raise VerifyException(f"{self.name}: {name} must have three dimensions")
        steps, batch, features = shape_of(self.x)
        if self.batch_first is not None:
            steps, batch = batch, steps
        count = 2 if self.direction.data == "bidirectional" else 1
        hidden = shape_of(self.r)[2]
        rows = self.GATES * hidden
        state = (count, batch, hidden)
        y = (steps, count, batch, hidden)
        if self.batch_first is not None:
            state, y = (batch, count, hidden), (batch, steps, count, hidden)
        shapes = {
            "w": (count, rows, features),
            "r": (count, rows, hidden),
            "b": (count, 2 * rows),
            "h": state,
            "dy": y,
        }
        for name, shape in shapes.items():
            check_shape(self, name, getattr(self, name), shape)
            check_element_type(self, name, getattr(self, name), element_type(self.x))
        super().verify_()


@irdl_op_definition
class RnnGradOp(RecurrentGradOp):
    """The gradient of h' = tanh(x w' + h r' + b)."""

    name = "train.rnn_grad"
    GATES: ClassVar[int] = 1


@irdl_op_definition
class GruGradOp(RecurrentGradOp):
    """The gradient of gated recurrent units; `linear_before_reset` as in `onnx.GRU`."""

    name = "train.gru_grad"
    GATES: ClassVar[int] = 3

    linear_before_reset = opt_prop_def(UnitAttr)


@irdl_op_definition
class LstmGradOp(RecurrentGradOp):
    """The gradient of long short-term memory, whose cells `c` are a state too."""

    name = "train.lstm_grad"
    GATES: ClassVar[int] = 4

    c = operand_def(TensorType)
    dc = operand_def(TensorType)
    dstart_cell = result_def(TensorType)

    TYPES: ClassVar[Types] = {
        **RecurrentGradOp.TYPES,
        "c": like("h"),
        "dc": like("h"),
        "dstart_cell": like("h"),
    }


OPS = [RnnGradOp, GruGradOp, LstmGradOp]
