"""The rule of the gradients of recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.recurrent import (
    GatheredGradOp,
    GatheredGruGradOp,
    GatheredLstmGradOp,
    GatheredRnnGradOp,
    LstmGradBase,
    RecurrentGradOp,
)
from distir.sharding.decompose import decomposition, in_scope_of
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule
from distir.sharding.rules.recurrent import RecurrentDims, local_direction

_WEIGHTS = -4
"""The position of the operand w; r, b and the first state follow."""


_GATHERED: dict[str, type[GatheredGradOp]] = {
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
    The rule of the gradients of recurrent layers: the batch is parallel, and the gradients
    of weights and biases are sums over it; the two directions of a bidirectional layer are
    parallel, and so are hidden features, which only the decomposition splits; the gradient
    of the input is a sum over both. Time is whole. Linear in all incoming gradients
    together.
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
    """The one op that computes the same and can split hidden features."""
    made = _GATHERED[op.name].create(
        operands=list(op.operands),
        result_types=[result.type for result in op.results],
        properties=op.properties.copy(),
    )
    return in_scope_of(op, [made])


@local_form("train.rnn_grad", "train.gru_grad", "train.lstm_grad")
def recurrent_gradient_local(context: LocalContext) -> Sequence[Operation]:
    """The local form of a layer whose directions are split: a layer of one direction."""
    op, local = context.op, context.same_op()
    assert isinstance(op, RecurrentGradOp)
    direction = local_direction(context, context.rule.operands[_WEIGHTS][0])
    if direction is not None:
        local.properties["direction"] = StringAttr(direction)
    return [local]
