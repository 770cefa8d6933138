"""
Recurrent layers that gather their state, and the gradients of all recurrent layers, on
arrays. If features are not split over devices, the group of a device is the device
alone.

Both directions go through their steps together: `x[t]` holds the inputs of step t of
every direction, [directions, batch, features].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from distir.dialects.train_ops.recurrent import (
    GatheredGruGradOp,
    GatheredGruOp,
    GatheredLayerOp,
    GatheredLstmGradOp,
    GatheredLstmOp,
    GatheredRnnGradOp,
    GatheredRnnOp,
    GruGradOp,
    LstmGradOp,
    RecurrentGradOp,
    RecurrentOp,
    RnnGradOp,
)
from distir.interpreters.joint_ops import Peers
from distir.interpreters.train.arithmetic import Array, computes, computes_jointly

States = list[Array]


class StepGradients(NamedTuple):
    """
    The gradients of one step of a recurrent layer: of the product of inputs and `w`
    (`left`), of the product of states and `r` (`right`), and of the states before the
    step (`states`). `states` does not include the gradient that flows through the
    product with `r`.
    """

    left: Array
    right: Array
    states: States


class TakenStep(NamedTuple):
    """
    One computed step of a recurrent layer. `states` are the states after the step.
    `backward` takes the gradients of `states` and returns the step's gradients. The
    last rows of `r` multiply `kept`, or the state before the step if `kept` is None.
    """

    states: States
    backward: Callable[[States], StepGradients]
    kept: Array | None = None


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _rnn(left: Array, right: Array) -> TakenStep:
    new = np.tanh(left + right)

    def backward(gradients: States) -> StepGradients:
        inner = gradients[0] * (1 - new**2)
        return StepGradients(inner, inner, [np.zeros_like(new)])

    return TakenStep([new], backward)


def _lstm(left: Array, right: Array, c: Array) -> TakenStep:
    parts = np.split(left + right, 4, axis=-1)
    i, o, f = map(_sigmoid, parts[:3])
    g = np.tanh(parts[3])
    cell = f * c + i * g
    seen = np.tanh(cell)

    def backward(gradients: States) -> StepGradients:
        dh, dc = gradients
        dc = dc + dh * o * (1 - seen**2)
        di, do = dc * g * i * (1 - i), dh * seen * o * (1 - o)
        df, dg = dc * c * f * (1 - f), dc * i * (1 - g**2)
        inner = np.concatenate([di, do, df, dg], axis=-1)
        return StepGradients(inner, inner, [np.zeros_like(dh), dc * f])

    return TakenStep([o * seen, cell], backward)


def _gru(
    op: RecurrentOp, r: Array, recurrent: Array, peers: Peers
) -> Callable[..., TakenStep]:
    """
    Returns the function that computes one step of a GRU. `recurrent` is the bias of the
    product with the state. Without `linear_before_reset`, this function ignores the
    part of `right` that belongs to the last gate.
    """
    linear_before_reset = op.properties.get("linear_before_reset") is not None
    size = op.features
    last, bias = r[:, 2 * size :], recurrent[..., 2 * size :]

    def step(left: Array, right: Array, h: Array) -> TakenStep:
        z, reset = np.split(_sigmoid((left + right)[..., : 2 * size]), 2, axis=-1)
        inner, kept = right[..., 2 * size :], None
        if linear_before_reset:
            part = reset * inner
        else:
            kept = peers.gather(reset * h)
            part = kept @ last.swapaxes(1, 2) + bias
        new = np.tanh(left[..., 2 * size :] + part)

        def backward(gradients: States) -> StepGradients:
            (dh,) = gradients
            dnew = dh * (1 - z) * (1 - new**2)
            dz = dh * (h - new) * z * (1 - z)
            before = dh * z
            if linear_before_reset:
                dinner, dreset = dnew * reset, dnew * inner
            else:
                dkept = peers.scatter(dnew @ last)
                dinner, dreset = dnew, dkept * h
                before = before + dkept * reset
            dreset = dreset * reset * (1 - reset)
            return StepGradients(
                np.concatenate([dz, dreset, dnew], axis=-1),
                np.concatenate([dz, dreset, dinner], axis=-1),
                [before],
            )

        return TakenStep([(1 - z) * new + z * h], backward, kept)

    return step


class _DirectedLayer:
    """
    A recurrent layer on one device: its weights, and its inputs in the order of steps
    of each direction.
    """

    def __init__(
        self, op: RecurrentOp, peers: Peers, x: Array, w: Array, r: Array, b: Array
    ):
        self.peers = peers
        self.batch_first = op.batch_first is not None
        count = len(w)
        named = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        self.backwards = named[op.direction.data]
        own, recurrent = np.split(b[:, None], 2, axis=-1)
        if self.batch_first:
            x = x.swapaxes(0, 1)
        self.x = self.in_order(np.stack([x] * count, 1))
        self.w, self.r, self.recurrent = w, r, recurrent
        self.left = self.x @ w.swapaxes(1, 2) + own
        steps: dict[int, Callable[..., TakenStep]] = {1: _rnn, 4: _lstm}
        self.step = steps.get(op.GATES) or _gru(op, r, recurrent, peers)

    def in_order(self, x: Array) -> Array:
        """
        Returns `x` [T, D, ...] with the steps of reverse directions reversed. A second
        call restores the order.
        """
        parts = [
            x[::-1, d] if reverse else x[:, d]
            for d, reverse in enumerate(self.backwards)
        ]
        return np.stack(parts, 1)

    def state(self, h: Array) -> Array:
        """Converts a state from the form of the op to [D, B, H], or back."""
        return h.swapaxes(0, 1) if self.batch_first else h

    def forward(self, states: States) -> tuple[list[TakenStep], list[Array]]:
        """
        Runs all steps from the initial `states`. Returns the steps, and the gathered
        state before each of them.
        """
        steps, gathered = list[TakenStep](), list[Array]()
        for left in self.left:
            gathered.append(self.peers.gather(states[0]))
            right = gathered[-1] @ self.r.swapaxes(1, 2) + self.recurrent
            steps.append(self.step(left, right, *self._others(states)))
            states = steps[-1].states
        return steps, gathered

    def _others(self, states: States) -> States:
        """
        Returns the operands of a step besides its two products: the state of a GRU, the
        cells of an LSTM, and none for an RNN.
        """
        return states[1:] if len(states) > 1 else states * (self.step is not _rnn)


def _rows(a: Array) -> Array:
    """Returns `a` [T, D, B, N] reshaped to [D, T * B, N]."""
    return a.swapaxes(0, 1).reshape(a.shape[1], -1, a.shape[-1])


@computes_jointly(GatheredRnnOp, GatheredGruOp, GatheredLstmOp)
def layer(op: GatheredLayerOp, peers: Peers, *operands: Array) -> tuple[Array, ...]:
    x, w, r, *others = operands
    count, size = len(r), r.shape[1]
    b = others.pop(0) if op.b is not None else np.zeros((count, 2 * size), x.dtype)
    own = _DirectedLayer(op, peers, x, w, r, b)
    batch = own.x.shape[2]
    zeros = np.zeros((count, batch, op.features), x.dtype)
    starts = [own.state(s) for s in others] or [zeros] * op.STATES
    steps, _ = own.forward(starts)
    y = own.in_order(np.stack([step.states[0] for step in steps]))
    if own.batch_first:
        y = y.transpose(2, 0, 1, 3)
    last = [own.state(s) for s in steps[-1].states]
    return (y, *last[: len(op.last)])


def _gradients(
    op: RecurrentGradOp,
    peers: Peers,
    dy: Array,
    weights: Sequence[Array],
    starts: States,
    ends: States,
) -> tuple[Array, ...]:
    """
    Returns the gradients of x, w, r, b and the initial states. `starts` holds the
    initial states, and `ends` the gradients of the last states.
    """
    x, w, r, b = weights
    own = _DirectedLayer(op, peers, x, w, r, b)
    steps, gathered = own.forward([own.state(s) for s in starts])
    dy = own.in_order(dy.transpose(1, 2, 0, 3) if own.batch_first else dy)
    gradients = [own.state(e) for e in ends]
    # The rows of r that do not multiply the previous state do not contribute to the
    # state's gradient.
    size = r.shape[1] if steps[0].kept is None else 2 * op.features
    found = list[StepGradients]()
    for step, more in zip(reversed(steps), dy[::-1], strict=True):
        gradients = [gradients[0] + more, *gradients[1:]]
        found.append(before := step.backward(gradients))
        through = peers.scatter(before.right[..., :size] @ r[:, :size])
        gradients = [before.states[0] + through, *before.states[1:]]
    left, right = (
        np.stack([getattr(before, name) for before in reversed(found)])
        for name in ("left", "right")
    )
    turned = _rows(right).swapaxes(1, 2)
    dr = turned[:, :size] @ _rows(np.stack(gathered))
    kept = [step.kept for step in steps if step.kept is not None]
    if kept:
        dr = np.concatenate([dr, turned[:, size:] @ _rows(np.stack(kept))], axis=1)
    dx = own.in_order(left @ w).sum(1)
    return (
        dx.swapaxes(0, 1) if own.batch_first else dx,
        _rows(left).swapaxes(1, 2) @ _rows(own.x),
        dr,
        np.concatenate([left.sum((0, 2)), right.sum((0, 2))], axis=-1),
        *(own.state(g) for g in gradients),
    )


@computes_jointly(GatheredRnnGradOp, GatheredGruGradOp)
def gathered_gradient(
    op: RecurrentGradOp, peers: Peers, *operands: Array
) -> tuple[Array, ...]:
    dy, dh, x, w, r, b, h = operands
    return _gradients(op, peers, dy, (x, w, r, b), [h], [dh])


@computes_jointly(GatheredLstmGradOp)
def gathered_lstm_gradient(
    op: RecurrentGradOp, peers: Peers, *operands: Array
) -> tuple[Array, ...]:
    c, dc, dy, dh, x, w, r, b, h = operands
    found = _gradients(op, peers, dy, (x, w, r, b), [h, c], [dh, dc])
    return (found[-1], *found[:-1])


@computes(RnnGradOp, GruGradOp)
def gradient(op: RecurrentGradOp, *operands: Array) -> tuple[Array, ...]:
    return gathered_gradient(op, Peers(), *operands)


@computes(LstmGradOp)
def lstm_gradient(op: LstmGradOp, *operands: Array) -> tuple[Array, ...]:
    return gathered_lstm_gradient(op, Peers(), *operands)
