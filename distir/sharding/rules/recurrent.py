"""Rules of recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Operation

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, onnx_rule

_FIRST_STATE = 5
"""Schema position of the first initial state; input 4 holds the sequence lengths."""

DIRECTIONS = ("forward", "reverse")
"""The directions of a bidirectional layer, in the order of its weights."""


@onnx_rule("LSTM", "GRU", "RNN")
def recurrent(op: OnnxOp) -> Rule:
    """
    The rule of recurrent layers: the batch and the two directions of a bidirectional layer are
    parallel; time and features are whole, as each step needs all features of the state before.
    """
    builder = RuleBuilder(op)
    batch_first = bool(op.attribute("layout"))
    batch = builder.factor(shape_of(op.operands[0])[0 if batch_first else 1])
    directions, _, hidden = shape_of(op.operands[2])
    each = builder.factor(directions) if _is_divisible(op, directions) else ()
    sequence: Dims = (batch, (), ()) if batch_first else ((), batch, ())
    state: Dims = (batch, each, ()) if batch_first else (each, batch, ())
    output: Dims = (batch, (), each, ()) if batch_first else ((), each, batch, ())
    weight: Dims = (each, (), ())
    inputs: dict[int, Dims] = {0: sequence, 1: weight, 2: weight, 3: (each, ())}
    inputs |= {4: (batch,), _FIRST_STATE: state}
    if op.name == "onnx.LSTM":
        inputs |= {_FIRST_STATE + 1: state, _FIRST_STATE + 2: (each, ())}
    # Each gate of each step multiplies the input and the state by a matrix.
    _, rows, width = shape_of(op.operands[1])
    steps = prod(shape_of(op.operands[0])[:2])
    flops = 2 * directions * steps * rows * (width + hidden)
    return builder.rule(inputs, [output, state, state], flops=flops)


def _is_divisible(op: OnnxOp, directions: int) -> bool:
    """Whether an op of one direction can do the work of one of several."""
    options = ("activation_alpha", "activation_beta")
    return directions > 1 and all(op.attribute(name) is None for name in options)


@local_form("onnx.LSTM", "onnx.GRU", "onnx.RNN")
def recurrent_local(context: LocalContext) -> Sequence[Operation]:
    """The local form of a layer whose directions are split: a layer of one direction."""
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


def local_direction(context: LocalContext, factors: Sequence[int]) -> str | None:
    """
    Returns the direction in which this device goes through sequences, given the factors of
    the weights' first dimension; None where it is that of the op.
    """
    axes = [axis for factor in factors for axis in context.axes_of(factor)]
    index = sum(context.coordinates[axis] for axis in axes)
    return DIRECTIONS[index] if prod(map(context.mesh.size, axes)) > 1 else None
