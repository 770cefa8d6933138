"""
Sharding rules and decompositions of recurrent layers and of their gradients, and their
local forms: the ops of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Operation

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import RECURRENT
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.recurrent import (
    GatheredGradOp,
    GatheredGruGradOp,
    GatheredGruOp,
    GatheredLayerOp,
    GatheredLstmGradOp,
    GatheredLstmOp,
    GatheredOp,
    GatheredRnnGradOp,
    GatheredRnnOp,
    LstmGradBase,
    RecurrentGradOp,
)
from distir.errors import DistIRError
from distir.program import describe
from distir.sharding.decompose import decomposition, in_scope_of
from distir.sharding.layout import joint_run
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, onnx_rule, train_rule

_SEQUENCE_LENGTHS, _FIRST_STATE, _PEEPHOLES = 4, 5, 7
"""The schema positions of operands. A second initial state follows the first one."""

DIRECTIONS = ("forward", "reverse")
"""The directions of a bidirectional layer, in the order of its weights."""

_GATHERED: dict[str, type[GatheredLayerOp]] = {
    "onnx.RNN": GatheredRnnOp,
    "onnx.GRU": GatheredGruOp,
    "onnx.LSTM": GatheredLstmOp,
}


def unusual_form(op: OnnxOp) -> str | None:
    """
    Returns the name of the first feature of a recurrent layer that prevents a gradient
    and a split of hidden features. Returns None if the layer has no such feature.
    """
    reasons = {
        "sequences of several lengths": op.input(_SEQUENCE_LENGTHS) is not None,
        "a clip": op.attribute("clip") is not None,
    }
    if op.name == "onnx.LSTM":
        reasons["peepholes"] = op.input(_PEEPHOLES) is not None
        reasons["coupled input and forget gates"] = bool(op.attribute("input_forget"))
    directions = 2 if op.attribute("direction") == "bidirectional" else 1
    wanted = RECURRENT[op.name] * directions
    given = op.attribute("activations") or wanted
    # The schema's default for one direction has an entry for a second one.
    same = [g.lower() for g in given][: len(wanted)] == list(wanted)
    reasons["other activations than tanh and sigmoid"] = not same
    return next((reason for reason, holds in reasons.items() if holds), None)


class RecurrentDims(NamedTuple):
    """The dimensions of the operands and results of a recurrent layer."""

    sequence: Dims
    state: Dims
    output: Dims
    weight: Dims
    bias: Dims

    @staticmethod
    def of(
        builder: RuleBuilder,
        batch: Dim,
        directions: Dim,
        gates: int,
        hidden: Dim,
        batch_first: bool,
    ) -> RecurrentDims:
        """
        Returns the dimensions of a recurrent layer for the given factors. The rows of
        the weights, and each half of a bias, are laid out as [gates, hidden].
        """
        own: Dim = ()
        both: Dim = ()
        if hidden:
            own, both = (builder.factor(n, "replicate") for n in (gates, 2 * gates))
        return RecurrentDims(
            (batch, (), ()) if batch_first else ((), batch, ()),
            (batch, directions, hidden) if batch_first else (directions, batch, hidden),
            (batch, (), directions, hidden)
            if batch_first
            else ((), directions, batch, hidden),
            (directions, (*own, *hidden), ()),
            (directions, (*both, *hidden)),
        )


@onnx_rule("LSTM", "GRU", "RNN")
def recurrent(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of recurrent layers. The batch and the two directions of a
    bidirectional layer are parallel; time is whole. Hidden features are split, with
    their gates, by the decomposition only, because each step needs all features of the
    previous state.
    """
    builder = RuleBuilder(op)
    batch_first = bool(op.attribute("layout"))
    batch = builder.factor(shape_of(op.operands[0])[0 if batch_first else 1])
    directions, rows, hidden = shape_of(op.operands[2])
    each = builder.factor(directions) if _is_divisible(op, directions) else ()
    features = builder.factor(hidden) if _can_gather(op) else ()
    dims = RecurrentDims.of(builder, batch, each, rows // hidden, features, batch_first)
    inputs: dict[int, Dims] = {0: dims.sequence, 1: dims.weight, 2: dims.weight}
    inputs |= {3: dims.bias, _SEQUENCE_LENGTHS: (batch,), _FIRST_STATE: dims.state}
    if op.name == "onnx.LSTM":
        inputs |= {_FIRST_STATE + 1: dims.state, _PEEPHOLES: (each, ())}
    return builder.rule(
        inputs,
        [dims.output, dims.state, dims.state],
        decomposed=[features],
        flops=_flops(op),
    )


def _flops(op: Operation) -> int:
    """
    Returns the number of floating-point operations: in each step, each gate multiplies
    the input and the state by a matrix.
    """
    directions, rows, width = shape_of(op.operands[1])
    steps, hidden = prod(shape_of(op.operands[0])[:2]), shape_of(op.operands[2])[2]
    return 2 * directions * steps * rows * (width + hidden)


def _is_divisible(op: OnnxOp, directions: int) -> bool:
    """
    Whether one layer per direction can compute a bidirectional layer. This is not so if
    activations have parameters.
    """
    options = ("activation_alpha", "activation_beta")
    return directions > 1 and all(op.attribute(name) is None for name in options)


def _can_gather(op: OnnxOp) -> bool:
    """
    Whether an op of the `train` dialect computes the same layer with split hidden
    features.
    """
    states = 2 if op.name == "onnx.LSTM" else 1
    given = [op.input(_FIRST_STATE + i) is not None for i in range(states)]
    return unusual_form(op) is None and len(set(given)) == 1


@decomposition(*RECURRENT)
def gathered_layer(op: Operation) -> list[Operation] | None:
    """
    Decomposes a recurrent layer into a single op of `train` that computes the same and
    can split hidden features. Returns None if no op of `train` computes the layer.
    """
    assert isinstance(op, OnnxOp)
    if not _can_gather(op):
        return None
    start = [op.input(_FIRST_STATE), op.input(_FIRST_STATE + 1)]
    settings = {"direction": op.attribute("direction")}
    settings["batch_first"] = bool(op.attribute("layout"))
    if op.name == "onnx.GRU":
        settings["linear_before_reset"] = bool(op.attribute("linear_before_reset"))
    made = _GATHERED[op.name](
        *op.operands[:3],
        op.input(3),
        [value for value in start if value is not None],
        y=op.results[0].type,
        last=[value.type for value in op.results[1:]],
        **settings,
    )
    return in_scope_of(op, [made])


@train_rule("gathered_rnn", "gathered_gru", "gathered_lstm")
def gathered(op: GatheredLayerOp) -> Rule:
    """
    Returns the sharding rule of a layer that gathers its state in each step. Batch,
    directions and hidden features are parallel.
    """
    builder = RuleBuilder(op)
    batch_first = op.batch_first is not None
    directions, size, hidden = op.state_shape
    batch = builder.factor(size)
    dims = RecurrentDims.of(
        builder,
        batch,
        builder.factor(directions),
        op.GATES,
        builder.factor(hidden) if op.axes is None else (),
        batch_first,
    )
    operands = [dims.sequence, dims.weight, dims.weight]
    operands += [dims.bias] * (op.b is not None) + [dims.state] * len(op.start)
    results = [dims.output, *[dims.state] * len(op.last)]
    return builder.rule(operands, results, flops=_flops(op))


@local_form(*RECURRENT)
def recurrent_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for a layer whose directions are split: a layer of one
    direction.
    """
    local = context.same_op()
    direction = local_direction(context, context.rule.operands[2][0])
    if direction is not None:
        local.properties["direction"] = StringAttr(direction)
        given = local.properties.get("activations")
        if isinstance(given, ArrayAttr):
            half = len(given.data) // 2
            first = DIRECTIONS.index(direction) * half
            local.properties["activations"] = ArrayAttr(given.data[first:][:half])
    return [local]


@local_form(
    *("train.gathered_rnn", "train.gathered_gru", "train.gathered_lstm"),
    *("train.gathered_rnn_grad", "train.gathered_gru_grad", "train.gathered_lstm_grad"),
)
def gathered_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for a layer that gathers its state, or for its gradient.
    The op names the mesh axes that split hidden features. If directions are split, the
    op has one direction. Raises DistIRError if one collective cannot gather the
    features.
    """
    op, local = context.op, context.same_op()
    assert isinstance(op, GatheredOp)
    rows = list(op.operands).index(op.r)
    weight = context.rule.operands[rows]
    direction = local_direction(context, weight[0])
    if direction is not None:
        local.properties["direction"] = StringAttr(direction)
    features = weight[1][-1:]
    if features and context.parts_of(features[0]) > 1:
        shards = context.assignment[features[0]]
        try:
            run = joint_run(op.state_shape[2], shards, context.mesh)
        except ValueError as error:
            raise DistIRError(
                f"{describe(op)}: its hidden features are split over "
                f"{', '.join(context.axes_of(features[0]))} with run lengths that do not "
                f"nest, which one collective cannot gather; split them contiguously"
            ) from error
        axes = [StringAttr(axis) for axis in context.axes_of(features[0])]
        local.properties["axes"] = ArrayAttr(axes)
        if run is not None:
            local.properties["run"] = IntegerAttr(run, i64)
    return [local]


def local_direction(context: LocalContext, factors: Sequence[int]) -> str | None:
    """
    Returns the direction in which this device processes sequences. `factors` are the
    factors of the weights' first dimension. Returns None if directions are not split.
    """
    axes = [axis for factor in factors for axis in context.axes_of(factor)]
    index = sum(context.coordinates[axis] for axis in axes)
    return DIRECTIONS[index] if prod(map(context.mesh.size, axes)) > 1 else None


_WEIGHTS = -4
"""
The position of the operand `w`, counted from the end; `r`, `b` and the first state
follow.
"""


_GATHERED_GRADIENTS: dict[str, type[GatheredGradOp]] = {
    "train.rnn_grad": GatheredRnnGradOp,
    "train.gru_grad": GatheredGruGradOp,
    "train.lstm_grad": GatheredLstmGradOp,
}


@train_rule(
    *("rnn_grad", "gru_grad", "lstm_grad"),
    *("gathered_rnn_grad", "gathered_gru_grad", "gathered_lstm_grad"),
)
def recurrent_gradient(op: RecurrentGradOp) -> Rule:
    """
    Returns the sharding rule of the gradients of recurrent layers.

    The batch is parallel; the gradients of weights and biases are sums over the batch.
    The two directions of a bidirectional layer are parallel, and so are hidden
    features, which only the decomposition splits; the gradient of the input is a sum
    over directions and hidden features. Time is whole. The op is linear in all incoming
    gradients together.
    """
    builder = RuleBuilder(op)
    batch_first = op.batch_first is not None
    batch = builder.factor(shape_of(op.x)[0 if batch_first else 1])
    directions, rows, width = shape_of(op.w)
    each = builder.factor(directions)
    is_local = isinstance(op, GatheredGradOp) and op.axes is not None
    hidden = () if is_local else builder.factor(op.features)
    dims = RecurrentDims.of(builder, batch, each, op.GATES, hidden, batch_first)
    state, sequence = dims.state, dims.sequence
    cells = [state] if isinstance(op, LstmGradBase) else []
    before = 2 * len(cells)
    learned = [dims.weight, dims.weight, dims.bias, state]
    operands = [*cells, *cells, dims.output, state, sequence, *learned]
    results = [*cells, sequence, *learned]
    incoming = (*([1] if cells else []), before, before + 1)
    # The forward again, and two products for each of its products.
    products = (
        directions * prod(shape_of(op.x)[:2]) * rows * (width + shape_of(op.r)[2])
    )
    return builder.rule(
        operands,
        results,
        linear=[incoming],
        reduced={len(cells): (each, hidden)}
        | {len(cells) + i: (batch,) for i in (1, 2, 3)},
        decomposed=[] if isinstance(op, GatheredGradOp) else [hidden],
        flops=3 * 2 * products,
    )


@decomposition("train.rnn_grad", "train.gru_grad", "train.lstm_grad")
def gathered_gradient(op: Operation) -> list[Operation]:
    """
    Decomposes the gradient of a recurrent layer into a single op that computes the same
    and can split hidden features.
    """
    made = _GATHERED_GRADIENTS[op.name].create(
        operands=list(op.operands),
        result_types=[result.type for result in op.results],
        properties=op.properties.copy(),
    )
    return in_scope_of(op, [made])


@local_form("train.rnn_grad", "train.gru_grad", "train.lstm_grad")
def recurrent_gradient_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for the gradient of a layer whose directions are split: the
    gradient of a layer of one direction.
    """
    op, local = context.op, context.same_op()
    assert isinstance(op, RecurrentGradOp)
    direction = local_direction(context, context.rule.operands[_WEIGHTS][0])
    if direction is not None:
        local.properties["direction"] = StringAttr(direction)
    return [local]
