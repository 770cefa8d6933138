"""Recurrent layers whose hidden features are divided among devices, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from xdsl.dialects.builtin import ArrayAttr, StringAttr, TensorType, UnitAttr
from xdsl.irdl import (
    AttrSizedOperandSegments,
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

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.base import I64
from distir.dialects.train_ops.recurrent import (
    GruGradBase,
    LstmGradBase,
    RecurrentGradOp,
    RecurrentOp,
)


class Exchange(NamedTuple):
    """Collectives of one kind, so many times, each of a state of all hidden features."""

    kind: Literal["all_gather", "reduce_scatter"]
    times: int


class GatheredOp(RecurrentOp):
    """
    Base of recurrent layers and gradients of them whose hidden features can be split over
    mesh axes. A device has the rows of `w`, `r` and `b` that belong to its features, of all
    gates, and these features of states and outputs. In each step devices gather the state
    before, [D, B, H], which all of them multiply with their rows; the two directions of a
    layer take their steps, and exchange their states, together. Backwards they sum and
    scatter the gradient of that state in each step, too.

    What they communicate is no op of its own: the layouts of the distributed form say which
    `axes` it goes over, and in the per-rank form, whose types are local, these are named
    (`run`: features are split in runs of so many).
    """

    axes = opt_prop_def(ArrayAttr[StringAttr])
    run = opt_prop_def(I64)

    @property
    def features(self) -> int:
        """The hidden features of which the weights have the gates."""
        return shape_of(self.r)[1] // self.GATES

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """The directions, batch and hidden features of a state that was gathered."""
        count, _, hidden = shape_of(self.r)
        return count, shape_of(self.x)[0 if self.batch_first is not None else 1], hidden

    @property
    def steps(self) -> int:
        """The number of steps in time."""
        return shape_of(self.x)[1 if self.batch_first is not None else 0]

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The collectives among devices that have different hidden features."""
        raise NotImplementedError

    @property
    def _exchanged(self) -> int:
        """The number of exchanges of a state in a step."""
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
    Base of the layers. `start` has the first states, all of the layer's or none (zeros);
    `last` as many of the last states as are asked for. Shapes are those of the gradients
    (`train.lstm_grad`), gates in ONNX's order.
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
    """`onnx.RNN` of tanh: h' = tanh(x w' + h r' + b)."""

    name = "train.gathered_rnn"
    GATES: ClassVar[int] = 1


class GruExchanges(GatheredOp):
    """
    Base of gated recurrent units and their gradients. Without `linear_before_reset` a step
    gathers twice: the state before, and what the reset gate leaves of it.
    """

    if TYPE_CHECKING:
        linear_before_reset: UnitAttr | None

    @property
    def _exchanged(self) -> int:
        return 2 if self.linear_before_reset is None else 1


@irdl_op_definition
class GatheredGruOp(GruExchanges, GatheredLayerOp):
    """`onnx.GRU`."""

    name = "train.gathered_gru"
    GATES: ClassVar[int] = 3

    linear_before_reset = opt_prop_def(UnitAttr)


@irdl_op_definition
class GatheredLstmOp(GatheredLayerOp):
    """`onnx.LSTM`. States are h and the cells c; h alone is gathered."""

    name = "train.gathered_lstm"
    GATES: ClassVar[int] = 4
    STATES: ClassVar[int] = 2


class GatheredGradOp(GatheredOp, RecurrentGradOp):
    """
    Base of the gradients: `RecurrentGradOp` says what of. The forward is computed again on
    the way and gathers states as it did the first time; backwards a step sums and scatters
    the gradient of each state that was gathered.
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
    GatheredRnnOp,
    GatheredGruOp,
    GatheredLstmOp,
    GatheredRnnGradOp,
    GatheredGruGradOp,
    GatheredLstmGradOp,
]
