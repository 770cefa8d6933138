"""The rule of the gradients of recurrent layers."""

from __future__ import annotations

from math import prod

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.recurrent import LstmGradOp, RecurrentGradOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, train_rule


@train_rule("rnn_grad", "gru_grad", "lstm_grad")
def recurrent_gradient(op: RecurrentGradOp) -> Rule:
    """
    The rule of the gradients of recurrent layers: the batch is parallel, and the gradients
    of weights and biases are sums over it; time, features and directions are whole. Linear
    in all incoming gradients together.
    """
    builder = RuleBuilder(op)
    batch_first = op.batch_first is not None
    batch = builder.factor(shape_of(op.x)[0 if batch_first else 1])
    sequence: Dims = (batch, (), ()) if batch_first else ((), batch, ())
    output: Dims = (batch, (), (), ()) if batch_first else ((), (), batch, ())
    weight: Dims = ((), (), ())
    bias: Dims = ((), ())
    cells = [sequence] if isinstance(op, LstmGradOp) else []
    before = 2 * len(cells)
    operands = [*cells, *cells, output, sequence, sequence, weight, weight, bias]
    results = [*cells, sequence, weight, weight, bias, sequence]
    incoming = (*([1] if cells else []), before, before + 1)
    # The forward again, and two products for each of its products.
    directions, rows, width = shape_of(op.w)
    products = (
        directions * prod(shape_of(op.x)[:2]) * rows * (width + shape_of(op.r)[2])
    )
    return builder.rule(
        [*operands, sequence],
        results,
        linear=[incoming],
        reduced={len(cells) + i: (batch,) for i in (1, 2, 3)},
        flops=3 * 2 * products,
    )
