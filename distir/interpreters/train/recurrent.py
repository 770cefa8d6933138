"""Gradients of recurrent layers on arrays: back through time, one step after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distir.dialects.train_ops.recurrent import (
    GruGradOp,
    LstmGradOp,
    RecurrentGradOp,
    RnnGradOp,
)
from distir.interpreters.train.arithmetic import Array, computes

Weights = tuple[Array, Array, Array]
"""The weights of one direction: of the input, of the state, and the biases of both."""

Totals = tuple[Array, Array, Array]
"""The gradients of these weights, which steps add to."""

States = list[Array]
Backward = Callable[[States], tuple[Array, States]]
"""
From the gradients of the states after a step to those of its input and of the states
before.
"""

Step = Callable[[Weights, Totals, Array, States], tuple[States, Backward]]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _products(
    weights: Weights, totals: Totals, x: Array, h: Array, left: Array, right: Array
) -> tuple[Array, Array]:
    """
    Returns the gradients of input and state from those of the products of the input
    (`left`) and the state (`right`) with their weights, whose gradients are added to the
    totals.
    """
    totals[0][:] += left.T @ x
    totals[1][:] += right.T @ h
    totals[2][:] += np.concatenate([left.sum(0), right.sum(0)])
    return left @ weights[0], right @ weights[1]


def _rnn(
    weights: Weights, totals: Totals, x: Array, states: States
) -> tuple[States, Backward]:
    (h,), (w, r, b) = states, weights
    new = np.tanh(x @ w.T + h @ r.T + b.reshape(2, -1).sum(0))

    def backward(gradients: States) -> tuple[Array, States]:
        inner = gradients[0] * (1 - new**2)
        dx, dh = _products(weights, totals, x, h, inner, inner)
        return dx, [dh]

    return [new], backward


def _lstm(
    weights: Weights, totals: Totals, x: Array, states: States
) -> tuple[States, Backward]:
    (h, c), (w, r, b) = states, weights
    parts = np.split(x @ w.T + h @ r.T + b.reshape(2, -1).sum(0), 4, axis=1)
    i, o, f = map(_sigmoid, parts[:3])
    g = np.tanh(parts[3])
    cell = f * c + i * g
    seen = np.tanh(cell)

    def backward(gradients: States) -> tuple[Array, States]:
        dh, dc = gradients
        dc = dc + dh * o * (1 - seen**2)
        inner = np.concatenate(
            [
                dc * g * i * (1 - i),
                dh * seen * o * (1 - o),
                dc * c * f * (1 - f),
                dc * i * (1 - g**2),
            ],
            axis=1,
        )
        dx, before = _products(weights, totals, x, h, inner, inner)
        return dx, [before, dc * f]

    return [o * seen, cell], backward


def _gru(linear_before_reset: bool) -> Step:
    def step(
        weights: Weights, totals: Totals, x: Array, states: States
    ) -> tuple[States, Backward]:
        (h,), (w, r, b) = states, weights
        hidden = h.shape[1]
        own, recurrent = b.reshape(2, -1)
        left, right = x @ w.T + own, h @ r.T + recurrent
        z = _sigmoid(left[:, :hidden] + right[:, :hidden])
        reset = _sigmoid((left + right)[:, hidden : 2 * hidden])
        rows = slice(2 * hidden, None)
        kept = reset * h
        inner = kept @ r[rows].T + recurrent[rows]
        if linear_before_reset:
            inner = reset * right[:, rows]
        new = np.tanh(left[:, rows] + inner)

        def backward(gradients: States) -> tuple[Array, States]:
            (dh,) = gradients
            dnew = dh * (1 - z) * (1 - new**2)
            dz = dh * (h - new) * z * (1 - z)
            before = dh * z
            if linear_before_reset:
                dinner, dreset = dnew * reset, dnew * right[:, rows]
            else:
                # What is reset has its own product with these rows of the weights.
                totals[1][rows] += dnew.T @ kept
                totals[2][r.shape[0] + 2 * hidden :] += dnew.sum(0)
                dkept = dnew @ r[rows]
                dinner, dreset = np.zeros_like(dnew), dkept * h
                before = before + dkept * reset
            dreset = dreset * reset * (1 - reset)
            both = [dz, dreset]
            dx, more = _products(
                *(weights, totals, x, h),
                np.concatenate([*both, dnew], axis=1),
                np.concatenate([*both, dinner], axis=1),
            )
            return dx, [before + more]

        return [(1 - z) * new + z * h], backward

    return step


def _gradients(
    op: RecurrentGradOp,
    step: Step,
    dy: Array,
    x: Array,
    weights: Weights,
    starts: list[Array],
    ends: list[Array],
) -> tuple[Array, ...]:
    """
    Returns the gradients of one direction; `starts` are the initial states, `ends` the
    gradients of the last ones.
    """
    batch_first = op.batch_first is not None
    if batch_first:
        x, dy = x.swapaxes(0, 1), dy.transpose(1, 2, 0, 3)
        starts, ends = ([s.swapaxes(0, 1) for s in each] for each in (starts, ends))
    dx = np.zeros_like(x)
    totals = tuple(np.zeros_like(a) for a in weights)
    first = [np.zeros_like(s) for s in starts]
    for d in range(len(weights[0])):
        order = list(range(len(x)))
        if op.direction.data == "reverse" or d == 1:
            order.reverse()
        own = (weights[0][d], weights[1][d], weights[2][d])
        added = (totals[0][d], totals[1][d], totals[2][d])
        states, backwards = [s[d] for s in starts], dict[int, Backward]()
        for t in order:
            states, backwards[t] = step(own, added, x[t], states)
        gradients = [e[d] for e in ends]
        for t in reversed(order):
            gradients = [gradients[0] + dy[t, d], *gradients[1:]]
            part, gradients = backwards[t](gradients)
            dx[t] += part
        for whole, gradient in zip(first, gradients, strict=True):
            whole[d] = gradient
    if batch_first:
        dx, first = dx.swapaxes(0, 1), [s.swapaxes(0, 1) for s in first]
    return (dx, *totals, *first)


@computes(RnnGradOp)
def rnn_gradient(op: RnnGradOp, *operands: Array) -> tuple[Array, ...]:
    dy, dh, x, w, r, b, h = operands
    return _gradients(op, _rnn, dy, x, (w, r, b), [h], [dh])


@computes(GruGradOp)
def gru_gradient(op: GruGradOp, *operands: Array) -> tuple[Array, ...]:
    dy, dh, x, w, r, b, h = operands
    step = _gru(op.linear_before_reset is not None)
    return _gradients(op, step, dy, x, (w, r, b), [h], [dh])


@computes(LstmGradOp)
def lstm_gradient(op: LstmGradOp, *operands: Array) -> tuple[Array, ...]:
    c, dc, dy, dh, x, w, r, b, h = operands
    found = _gradients(op, _lstm, dy, x, (w, r, b), [h, c], [dh, dc])
    return (found[-1], *found[:-1])
