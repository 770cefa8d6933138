"""The rule of the gradients of recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.recurrent import LstmGradOp, RecurrentGradOp
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, train_rule
from distir.sharding.rules.recurrent import local_direction

_WEIGHTS = -4
"""The position of the operand w; r, b and the first state follow."""


@train_rule("rnn_grad", "gru_grad", "lstm_grad")
def recurrent_gradient(op: RecurrentGradOp) -> Rule:
    """
    The rule of the gradients of recurrent layers: the batch is parallel, and the gradients
    of weights and biases are sums over it; the two directions of a bidirectional layer are
    parallel, and the gradient of the input is a sum over them; time and features are whole.
    Linear in all incoming gradients together.
    """
    builder = RuleBuilder(op)
    batch_first = op.batch_first is not None
    batch = builder.factor(shape_of(op.x)[0 if batch_first else 1])
    directions, rows, width = shape_of(op.w)
    each = builder.factor(directions) if directions > 1 else ()
    sequence: Dims = (batch, (), ()) if batch_first else ((), batch, ())
    state: Dims = (batch, each, ()) if batch_first else (each, batch, ())
    output: Dims = (batch, (), each, ()) if batch_first else ((), each, batch, ())
    weight: Dims = (each, (), ())
    bias: Dims = (each, ())
    cells = [state] if isinstance(op, LstmGradOp) else []
    before = 2 * len(cells)
    operands = [*cells, *cells, output, state, sequence, weight, weight, bias, state]
    results = [*cells, sequence, weight, weight, bias, state]
    incoming = (*([1] if cells else []), before, before + 1)
    # The forward again, and two products for each of its products.
    products = (
        directions * prod(shape_of(op.x)[:2]) * rows * (width + shape_of(op.r)[2])
    )
    return builder.rule(
        operands,
        results,
        linear=[incoming],
        reduced={len(cells): (each,)} | {len(cells) + i: (batch,) for i in (1, 2, 3)},
        flops=3 * 2 * products,
    )


@local_form("train.rnn_grad", "train.gru_grad", "train.lstm_grad")
def recurrent_gradient_local(context: LocalContext) -> Sequence[Operation]:
    """The local form of a layer whose directions are split: a layer of one direction."""
    op, local = context.op, context.same_op()
    assert isinstance(op, RecurrentGradOp)
    direction = local_direction(context, context.rule.operands[_WEIGHTS][0])
    if direction is not None:
        local.properties["direction"] = StringAttr(direction)
    return [local]
