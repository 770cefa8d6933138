"""Gradients of recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from xdsl.dialects.builtin import StringAttr, TensorType, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    Operand,
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


class RecurrentOp(TrainOp):
    """Base of recurrent layers and of gradients of them, and what their values must be."""

    GATES: ClassVar[int]

    # What every layer and every gradient has; where these are in the order of operands is
    # their own business.
    if TYPE_CHECKING:
        x: Operand
        w: Operand
        r: Operand
        direction: StringAttr
        batch_first: UnitAttr | None

    @property
    def features(self) -> int:
        """The number of hidden features whose gates the weights hold."""
        raise NotImplementedError

    def verify_weights(self) -> None:
        """Raises VerifyException unless inputs and weights have their ranks."""
        for name, value in (("x", self.x), ("w", self.w), ("r", self.r)):
            if len(shape_of(value)) != 3:
                raise VerifyException(f"{self.name}: {name} must have three dimensions")

    def verify_layer(self, others: Sequence[tuple[str, SSAValue]]) -> None:
        """
        Raises VerifyException unless the values fit each other. `others` are those beside x,
        w and r, by what they are: a bias "b", a state "h" or outputs "y", with a name after
        it.
        """
        x, direction = self.x, self.direction.data
        check_float(self, "x", x)
        if direction not in DIRECTIONS:
            raise VerifyException(
                f'{self.name}: direction is "{direction}", expected one of '
                f"{', '.join(DIRECTIONS)}"
            )
        is_batch_first = self.batch_first is not None
        steps, batch, width = shape_of(x)
        if is_batch_first:
            steps, batch = batch, steps
        count, features = 2 if direction == "bidirectional" else 1, self.features
        rows = self.GATES * features
        state = (count, batch, features)
        y = (steps, count, batch, features)
        if is_batch_first:
            state, y = (batch, count, features), (batch, steps, count, features)
        shapes = {
            "w": (count, rows, width),
            "r": (count, rows, shape_of(self.r)[2]),
            "b": (count, 2 * rows),
            "h": state,
            "y": y,
        }
        for name, value in (("w", self.w), ("r", self.r), *others):
            kind, _, own = name.partition(" ")
            check_shape(self, own or kind, value, shapes[kind])
            check_element_type(self, own or kind, value, element_type(x))


class RecurrentGradOp(RecurrentOp):
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

    @property
    def features(self) -> int:
        """The number of hidden features; the weights hold the gates of all."""
        return shape_of(self.r)[2]

    def verify_(self) -> None:
        self.verify_weights()
        self.verify_layer([("b", self.b), ("h", self.h), ("y dy", self.dy)])
        super().verify_()


@irdl_op_definition
class RnnGradOp(RecurrentGradOp):
    """The gradient of h' = tanh(x w' + h r' + b)."""

    name = "train.rnn_grad"
    TORCH: ClassVar[str] = (
        "{op}({*}, direction={direction}, batch_first={batch_first:flag})"
    )
    TORCH_MODULE: ClassVar[str] = "recurrent"
    GATES: ClassVar[int] = 1


class GruGradBase(RecurrentGradOp):
    """
    Base of the gradients of gated recurrent units; `linear_before_reset` as in `onnx.GRU`.
    """

    GATES: ClassVar[int] = 3

    linear_before_reset = opt_prop_def(UnitAttr)


@irdl_op_definition
class GruGradOp(GruGradBase):
    """The gradient of gated recurrent units."""

    name = "train.gru_grad"
    TORCH: ClassVar[str] = (
        "gru_grad({*}, direction={direction}, batch_first={batch_first:flag}, "
        "linear_before_reset={linear_before_reset:flag})"
    )
    TORCH_MODULE: ClassVar[str] = "recurrent"


class LstmGradBase(RecurrentGradOp):
    """Base of the gradients of long short-term memory, whose cells `c` are a state too."""

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


@irdl_op_definition
class LstmGradOp(LstmGradBase):
    """The gradient of long short-term memory."""

    name = "train.lstm_grad"
    TORCH: ClassVar[str] = (
        "{op}({*}, direction={direction}, batch_first={batch_first:flag})"
    )
    TORCH_MODULE: ClassVar[str] = "recurrent"


OPS = [RnnGradOp, GruGradOp, LstmGradOp]
