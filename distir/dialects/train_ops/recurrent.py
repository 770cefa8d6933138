"""
Gradients of recurrent layers, and recurrent layers whose hidden features are split over
devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from xdsl.dialects.builtin import ArrayAttr, StringAttr, TensorType, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    Operand,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
)

DIRECTIONS = ("forward", "reverse", "bidirectional")


class RecurrentOp(TrainOp):
    """
    Base of recurrent layers and of their gradients. The class checks their operands and
    results.
    """

    GATES: ClassVar[int]

    # The values of every layer and every gradient. Each class decides their positions
    # among its operands.
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
        """Raises VerifyException unless `x`, `w` and `r` have three dimensions."""
        for name, value in (("x", self.x), ("w", self.w), ("r", self.r)):
            if len(shape_of(value)) != 3:
                raise VerifyException(f"{self.name}: {name} must have three dimensions")

    def verify_layer(self, others: Sequence[tuple[str, SSAValue]]) -> None:
        """
        Raises VerifyException unless the values of the layer fit each other. `others`
        holds the values besides x, w and r, each with a text for its kind: a bias "b",
        a state "h" or outputs "y". A second word in the text, if any, is the value's
        name in messages.
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
    Base of the gradients of `onnx.RNN`, `onnx.GRU` and `onnx.LSTM` with tanh and
    sigmoid activations.

    The op takes the gradients of all outputs (`dy`) and of the last states. The op
    returns the gradients of the input, the weights, the biases and the initial states,
    and recomputes the forward pass. Gates are in ONNX's order. For T steps, batch B, D
    directions, H hidden features and G gates, the shapes are

        x: [T, B, features]        y: [T, D, B, H]        h: [D, B, H]
        w: [D, G * H, features]    r: [D, G * H, H]       b: [D, 2 * G * H]

    With `batch_first` (ONNX's `layout = 1`), x is [B, T, features], y is [B, T, D, H]
    and h is [B, D, H].
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
        """
        The number of hidden features. The weights hold the gates of all these features.
        """
        return shape_of(self.r)[2]

    def verify_(self) -> None:
        self.verify_weights()
        self.verify_layer([("b", self.b), ("h", self.h), ("y dy", self.dy)])
        super().verify_()


@irdl_op_definition
class RnnGradOp(RecurrentGradOp):
    """The gradient of h' = tanh(x w' + h r' + b), the layer `onnx.RNN`."""

    name = "train.rnn_grad"
    TORCH: ClassVar[str] = (
        "{op}({*}, direction={direction}, batch_first={batch_first:flag})"
    )
    TORCH_MODULE: ClassVar[str] = "recurrent"
    GATES: ClassVar[int] = 1


class GruGradBase(RecurrentGradOp):
    """
    Base of the gradients of gated recurrent units. `linear_before_reset` is as in
    `onnx.GRU`.
    """

    GATES: ClassVar[int] = 3

    linear_before_reset = opt_prop_def(UnitAttr)


@irdl_op_definition
class GruGradOp(GruGradBase):
    """The gradient of gated recurrent units (`onnx.GRU`)."""

    name = "train.gru_grad"
    TORCH: ClassVar[str] = (
        "gru_grad({*}, direction={direction}, batch_first={batch_first:flag}, "
        "linear_before_reset={linear_before_reset:flag})"
    )
    TORCH_MODULE: ClassVar[str] = "recurrent"


class LstmGradBase(RecurrentGradOp):
    """
    Base of the gradients of long short-term memory. The cells `c` are the layer's
    second state, besides `h`.
    """

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
    """The gradient of long short-term memory (`onnx.LSTM`)."""

    name = "train.lstm_grad"
    TORCH: ClassVar[str] = (
        "{op}({*}, direction={direction}, batch_first={batch_first:flag})"
    )
    TORCH_MODULE: ClassVar[str] = "recurrent"


class Exchange(NamedTuple):
    """
    Collectives of one kind that a recurrent layer runs; `times` is the number of
    collectives. Each collective works on a state with all hidden features.
    """

    kind: Literal["all_gather", "reduce_scatter", "all_to_all"]
    times: int


class GatheredOp(RecurrentOp):
    """
    Base of recurrent layers, and of their gradients, whose hidden features can be split
    over mesh axes.

    A device holds its features of states and outputs, and the rows of `w`, `r` and `b`
    for all gates of these features. In each step, devices gather the previous state,
    [D, B, H], and each device multiplies the state by its rows. The two directions of a
    layer take their steps together, and exchange their states together. In the backward
    pass, each step also sums and scatters the gradient of the gathered state.

    The program has no separate op for this communication. In the distributed form,
    layouts determine its `axes`. In the per-rank form, whose types are local, the op
    names the axes; with `run`, the devices get the features in turn, `run` consecutive
    features at a time.
    """

    axes = opt_prop_def(ArrayAttr[StringAttr])
    run = opt_prop_def(I64)

    @property
    def features(self) -> int:
        """
        The number of hidden features whose gates the weights hold. On one rank, these
        are the rank's own features.
        """
        return shape_of(self.r)[1] // self.GATES

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """
        The numbers of directions, samples and hidden features of a gathered state.
        """
        count, _, hidden = shape_of(self.r)
        return count, shape_of(self.x)[0 if self.batch_first is not None else 1], hidden

    @property
    def steps(self) -> int:
        """The number of time steps."""
        return shape_of(self.x)[1 if self.batch_first is not None else 0]

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """
        The collectives by which devices exchange states if they hold different hidden
        features.
        """
        raise NotImplementedError

    @property
    def _exchanged(self) -> int:
        """The number of times that a step exchanges a state."""
        return 1

    def _verify_features(self) -> None:
        self.verify_weights()
        rows, hidden = shape_of(self.r)[1:]
        own = self.features
        if rows != own * self.GATES or not own or hidden % own:
            raise VerifyException(
                f"{self.name}: r has {rows} rows, which are not the {self.GATES} gates of a "
                f"part of {hidden} hidden features"
            )
        if own != hidden and self.axes is None:
            raise VerifyException(
                f"{self.name}: r has the gates of {own} of {hidden} hidden features; the "
                f"per-rank form needs `axes`, over which they are split"
            )


class GatheredLayerOp(GatheredOp):
    """
    Base of the recurrent layers whose hidden features can be split.

    `start` holds the initial value of each state of the layer, or is empty; the states
    then start as zeros. `last` holds the final values of states, if they are requested.
    Shapes are as in the gradients (`train.lstm_grad`). Gates are in ONNX's order.
    """

    x = operand_def(TensorType)
    w = operand_def(TensorType)
    r = operand_def(TensorType)
    b = opt_operand_def(TensorType)
    start = var_operand_def(TensorType)
    y = result_def(TensorType)
    last = var_result_def(TensorType)
    direction = prop_def(StringAttr)
    batch_first = opt_prop_def(UnitAttr)

    irdl_options = (
        ParsePropInAttrDict(),
        AttrSizedOperandSegments(as_property=True),
    )
    assembly_format = (
        "$x `,` $w `,` $r (`bias` $b^)? (`from` $start^)? attr-dict `:` type($x) `,` "
        "type($w) `,` type($r) (`bias` type($b)^)? (`from` type($start)^)? `->` type($y) "
        "(`,` type($last)^)?"
    )

    STATES: ClassVar[int] = 1

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return (Exchange("all_gather", self._exchanged * self.steps),)

    def verify_(self) -> None:
        self._verify_features()
        others = [("y", self.y), *(("h last", value) for value in self.last)]
        others += [("h start", value) for value in self.start]
        if self.b is not None:
            others.append(("b", self.b))
        self.verify_layer(others)
        if len(self.start) not in (0, self.STATES) or len(self.last) > self.STATES:
            raise VerifyException(
                f"{self.name} has {self.STATES} states, got {len(self.start)} first and "
                f"{len(self.last)} last ones"
            )
        super().verify_()


@irdl_op_definition
class GatheredRnnOp(GatheredLayerOp):
    """
    The layer `onnx.RNN` with tanh, h' = tanh(x w' + h r' + b), whose hidden features
    can be split.
    """

    name = "train.gathered_rnn"
    GATES: ClassVar[int] = 1


class GruExchanges(GatheredOp):
    """
    Base of gated recurrent units and of their gradients. Without `linear_before_reset`,
    a step gathers twice: the previous state, and the part of this state that the reset
    gate keeps.
    """

    if TYPE_CHECKING:
        linear_before_reset: UnitAttr | None

    @property
    def _exchanged(self) -> int:
        return 2 if self.linear_before_reset is None else 1


@irdl_op_definition
class GatheredGruOp(GruExchanges, GatheredLayerOp):
    """The layer `onnx.GRU`, whose hidden features can be split."""

    name = "train.gathered_gru"
    GATES: ClassVar[int] = 3

    linear_before_reset = opt_prop_def(UnitAttr)


@irdl_op_definition
class GatheredLstmOp(GatheredLayerOp):
    """
    The layer `onnx.LSTM`, whose hidden features can be split. Its states are h and the
    cells c; only h is gathered.
    """

    name = "train.gathered_lstm"
    GATES: ClassVar[int] = 4
    STATES: ClassVar[int] = 2


class GatheredGradOp(GatheredOp, RecurrentGradOp):
    """
    Base of the gradients of recurrent layers whose hidden features can be split.
    `RecurrentGradOp` describes their operands and results. The op recomputes the
    forward pass and gathers states again. In the backward pass, each step sums and
    scatters the gradient of each gathered state.
    """

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        times = self._exchanged * self.steps
        return (Exchange("all_gather", times), Exchange("reduce_scatter", times))

    def verify_(self) -> None:
        self._verify_features()
        super().verify_()


@irdl_op_definition
class GatheredRnnGradOp(GatheredGradOp):
    """The gradient of `train.gathered_rnn`."""

    name = "train.gathered_rnn_grad"
    GATES: ClassVar[int] = 1


@irdl_op_definition
class GatheredGruGradOp(GruExchanges, GatheredGradOp, GruGradBase):
    """The gradient of `train.gathered_gru`."""

    name = "train.gathered_gru_grad"


@irdl_op_definition
class GatheredLstmGradOp(GatheredGradOp, LstmGradBase):
    """The gradient of `train.gathered_lstm`."""

    name = "train.gathered_lstm_grad"


OPS = [
    RnnGradOp,
    GruGradOp,
    LstmGradOp,
    GatheredRnnOp,
    GatheredGruOp,
    GatheredLstmOp,
    GatheredRnnGradOp,
    GatheredGruGradOp,
    GatheredLstmGradOp,
]
