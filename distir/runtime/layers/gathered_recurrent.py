"""
Recurrent layers of ONNX, and their gradients, whose hidden features are divided among
the processes of a group.

Each process has the gates of its own features, [directions, gates x own features, ...].
In each step, it gathers the states of all features. Both directions run their steps
together. In a tensor stacked over steps, the entries of each direction are in the order
of this direction's steps.
"""

import torch

from ..communication.collectives import all_gather, reduce_scatter


class _Layer:
    """The weights and inputs of a layer on one process."""

    def __init__(self, group, run, x, w, r, b, direction, batch_first):
        self.group, self.run, self.batch_first = group, run, batch_first
        count = len(w)
        self.reversed = [False, True] if count == 2 else [direction == "reverse"]
        x = x.transpose(0, 1) if batch_first else x
        self.x = self.in_order(x.unsqueeze(1).expand(-1, count, -1, -1))
        self.w, self.r = w, r
        b = w.new_zeros(count, 2 * w.shape[1]) if b is None else b
        own, self.bias = b.unsqueeze(1).chunk(2, -1)
        self.left = self.x @ w.transpose(1, 2) + own

    def in_order(self, x):
        """
        Returns `x` [steps, directions, ...] with the steps in the order of each
        direction. A second call restores the order in time.
        """
        parts = [
            part.flip(0) if flipped else part
            for part, flipped in zip(x.unbind(1), self.reversed, strict=True)
        ]
        return torch.stack(parts, 1)

    def state(self, h):
        """
        Converts a state from ONNX's form to [directions, batch, features], or back.
        """
        return h.transpose(0, 1) if self.batch_first else h

    def gather(self, h):
        return all_gather(h, self.group, h.dim() - 1, self.run)

    def scatter(self, h):
        return reduce_scatter(h, self.group, h.dim() - 1, "sum", self.run)

    def forward(self, step, states):
        """
        Runs all steps from the initial `states`. Returns the finished steps, and for
        each step the state of all features that it gathered.
        """
        steps, gathered, turned = [], [], self.r.transpose(1, 2)
        for left in self.left:
            gathered.append(self.gather(states[0]))
            right = torch.baddbmm(self.bias, gathered[-1], turned)
            steps.append(step(self, left, right, *states))
            states = steps[-1].states
        return steps, gathered


class _Rnn:
    def __init__(self, layer, left, right, h):
        self.new = torch.tanh(left + right)
        self.states = [self.new]

    def backward(self, layer, dh):
        inner = dh * (1 - self.new**2)
        return inner, inner, [None]


class _Lstm:
    def __init__(self, layer, left, right, h, c):
        i, o, f, g = (left + right).chunk(4, -1)
        self.i, self.o, self.f = torch.sigmoid(i), torch.sigmoid(o), torch.sigmoid(f)
        self.g, self.before = torch.tanh(g), c
        cell = self.f * c + self.i * self.g
        self.seen = torch.tanh(cell)
        self.states = [self.o * self.seen, cell]

    def backward(self, layer, dh, dc):
        i, o, f, g = self.i, self.o, self.f, self.g
        dc = dc + dh * o * (1 - self.seen**2)
        parts = [
            dc * g * i * (1 - i),
            dh * self.seen * o * (1 - o),
            dc * self.before * f * (1 - f),
            dc * i * (1 - g**2),
        ]
        inner = torch.cat(parts, -1)
        return inner, inner, [None, dc * f]


class _Gru:
    """
    A GRU step whose reset gate multiplies the product of the weights and the state
    (ONNX's `linear_before_reset`).
    """

    def __init__(self, layer, left, right, h):
        size = h.shape[-1]
        both = torch.sigmoid((left + right)[..., : 2 * size])
        self.z, self.reset = both.chunk(2, -1)
        self.h = h
        self.inner = self.of_state(layer, right[..., 2 * size :])
        self.new = torch.tanh(left[..., 2 * size :] + self.inner)
        self.states = [(1 - self.z) * self.new + self.z * h]

    def of_state(self, layer, right):
        self.right = right
        return self.reset * right

    def backward(self, layer, dh):
        dnew = dh * (1 - self.z) * (1 - self.new**2)
        dz = dh * (self.h - self.new) * self.z * (1 - self.z)
        dinner, dreset, before = self.through(layer, dnew)
        dreset = dreset * self.reset * (1 - self.reset)
        left, right = ([dz, dreset, last] for last in (dnew, dinner))
        return torch.cat(left, -1), torch.cat(right, -1), [dh * self.z + before]

    def through(self, layer, dnew):
        """
        Returns the gradients of the last gate's product, of the reset gate and of the
        state, given `dnew`, the gradient of the last gate before its tanh.
        """
        return dnew * self.reset, dnew * self.right, 0


class _ResetFirst(_Gru):
    """
    A GRU step whose reset gate multiplies the state before the product with the
    weights.
    """

    def of_state(self, layer, right):
        size = self.h.shape[-1]
        self.kept = layer.gather(self.reset * self.h)
        last = layer.r[:, 2 * size :].transpose(1, 2)
        return torch.baddbmm(layer.bias[..., 2 * size :], self.kept, last)

    def through(self, layer, dnew):
        dkept = layer.scatter(dnew @ layer.r[:, 2 * self.h.shape[-1] :])
        return dnew, dkept * self.h, dkept * self.reset


def _run(step, group, run, x, w, r, b, starts, **order):
    layer = _Layer(group, run, x, w, r, b, **order)
    size = r.shape[2] // group.size
    zero = layer.x.new_zeros(len(r), layer.x.shape[2], size)
    starts = [zero if s is None else layer.state(s) for s in starts]
    steps, _ = layer.forward(step, starts)
    y = layer.in_order(torch.stack([s.states[0] for s in steps]))
    if layer.batch_first:
        y = y.permute(2, 0, 1, 3)
    return (y, *(layer.state(s) for s in steps[-1].states))


def _rows(a):
    """
    Returns a tensor [steps, directions, batch, n] as [directions, steps x batch, n].
    """
    return a.transpose(0, 1).flatten(1, 2)


def _gradients(step, group, run, dy, x, w, r, b, starts, ends, **order):
    """
    Recomputes the forward pass and returns the gradients of `x`, `w`, `r`, `b` and the
    initial states `starts`. `ends` are the gradients of the last states.
    """
    layer = _Layer(group, run, x, w, r, b, **order)
    steps, gathered = layer.forward(step, [layer.state(s) for s in starts])
    dy = layer.in_order(dy.permute(1, 2, 0, 3) if layer.batch_first else dy)
    # Rows of r that do not multiply the state before have a product of their own.
    size = r.shape[1]
    if step is _ResetFirst:
        size = size // 3 * 2
    gradients = [layer.state(e) for e in ends]
    lefts, rights = [], []
    for done, more in zip(reversed(steps), dy.flip(0), strict=True):
        left, right, before = done.backward(layer, gradients[0] + more, *gradients[1:])
        through = layer.scatter(right[..., :size] @ r[:, :size])
        own = through if before[0] is None else through + before[0]
        gradients = [own, *before[1:]]
        lefts.append(left)
        rights.append(right)
    left, right = torch.stack(lefts[::-1]), torch.stack(rights[::-1])
    turned = _rows(right).transpose(1, 2)
    dr = turned[:, :size] @ _rows(torch.stack(gathered))
    if step is _ResetFirst:
        kept = _rows(torch.stack([done.kept for done in steps]))
        dr = torch.cat([dr, turned[:, size:] @ kept], 1)
    dx = layer.in_order(left @ w).sum(1)
    return (
        dx.transpose(0, 1) if layer.batch_first else dx,
        _rows(left).transpose(1, 2) @ _rows(layer.x),
        dr,
        torch.cat([left.sum((0, 2)), right.sum((0, 2))], -1),
        *(layer.state(g) for g in gradients),
    )


def _gru_step(linear_before_reset):
    return _Gru if linear_before_reset else _ResetFirst


def rnn(group, run, x, w, r, b, h, **order):
    return _run(_Rnn, group, run, x, w, r, b, [h], **order)


def gru(group, run, x, w, r, b, h, linear_before_reset, **order):
    step = _gru_step(linear_before_reset)
    return _run(step, group, run, x, w, r, b, [h], **order)


def lstm(group, run, x, w, r, b, h, c, **order):
    return _run(_Lstm, group, run, x, w, r, b, [h, c], **order)


def rnn_grad(group, run, dy, dh, x, w, r, b, h, **order):
    return _gradients(_Rnn, group, run, dy, x, w, r, b, [h], [dh], **order)


def gru_grad(group, run, dy, dh, x, w, r, b, h, linear_before_reset, **order):
    step = _gru_step(linear_before_reset)
    return _gradients(step, group, run, dy, x, w, r, b, [h], [dh], **order)


def lstm_grad(group, run, c, dc, dy, dh, x, w, r, b, h, **order):
    states, ends = [h, c], [dh, dc]
    found = _gradients(_Lstm, group, run, dy, x, w, r, b, states, ends, **order)
    return (found[-1], *found[:-1])
