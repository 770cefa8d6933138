"""Rules of recurrent layers."""

from __future__ import annotations

from math import prod

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, onnx_rule

_FIRST_STATE = 5
"""Schema position of the first initial state; input 4 holds the sequence lengths."""


@onnx_rule("LSTM", "GRU", "RNN")
def recurrent(op: OnnxOp) -> Rule:
    """
    The rule of recurrent layers: the batch is parallel; time, features and directions are
    whole.
    """
    builder = RuleBuilder(op)
    batch_first = bool(op.attribute("layout"))
    batch = builder.factor(shape_of(op.operands[0])[0 if batch_first else 1])
    sequence: Dims = (batch, (), ()) if batch_first else ((), batch, ())
    state = sequence
    output: Dims = (batch, (), (), ()) if batch_first else ((), (), batch, ())
    inputs = {0: sequence, 4: (batch,), _FIRST_STATE: state}
    if op.name == "onnx.LSTM":
        inputs[_FIRST_STATE + 1] = state
    # Each gate of each step multiplies the input and the state by a matrix.
    _, rows, width = shape_of(op.operands[1])
    directions, _, hidden = shape_of(op.operands[2])
    steps = prod(shape_of(op.operands[0])[:2])
    flops = 2 * directions * steps * rows * (width + hidden)
    return builder.rule(inputs, [output, state, state], flops=flops)
