"""
Recurrent layers of ONNX.

Sequences are [steps, batch, features], or [batch, steps, features] with `batch_first`.
Weights are stacked by direction, and their rows are gates. Each layer returns the
outputs [steps, directions, batch, hidden] and the last states.
"""

import torch

from ..devices import here


def _scan(step, x, lengths, states, backwards):
    """
    Applies `step` to each time step, and returns the outputs and the last states. The
    states of a sequence stop changing at its end in `lengths`; later outputs are 0.
    """
    steps = x.shape[0]
    if lengths is None:
        lengths = torch.full((x.shape[1],), steps, device=here())
    lengths = lengths.to(torch.int64)
    outputs = [None] * steps
    for t in reversed(range(steps)) if backwards else range(steps):
        active = (t < lengths).unsqueeze(1)
        new = step(x[t], *states)
        states = [
            torch.where(active, n, old) for n, old in zip(new, states, strict=True)
        ]
        outputs[t] = torch.where(active, new[0], 0)
    return torch.stack(outputs), states


def _layer(make_step, x, weights, lengths, states, direction, batch_first):
    """
    Runs one or two directions, and returns the outputs and the last states. `weights`
    and `states` are stacked by direction; `weights[1]` multiplies the state.
    """
    if batch_first:
        x = x.transpose(0, 1)
        states = [None if s is None else s.transpose(0, 1) for s in states]
    count, _, hidden = weights[1].shape
    zero = torch.zeros(count, x.shape[1], hidden, dtype=x.dtype, device=here())
    states = [zero if s is None else s for s in states]
    outputs, last = [], []
    for d in range(count):
        step = make_step(*(None if w is None else w[d] for w in weights))
        backwards = direction == "reverse" or d == 1
        out, final = _scan(step, x, lengths, [s[d] for s in states], backwards)
        outputs.append(out)
        last.append(final)
    y = torch.stack(outputs, 1)
    ends = [torch.stack(rows) for rows in zip(*last, strict=True)]
    if batch_first:
        y, ends = y.permute(2, 0, 1, 3), [e.transpose(0, 1) for e in ends]
    return (y, *ends)


_GATES = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2), "rnn_tanh": (0,)}
"""The order of the gates in PyTorch's kernels, as positions among the gates of ONNX."""


def _kernel(kind, x, w, r, b, states, direction, batch_first):
    """
    Runs one or two directions by PyTorch's own kernel, and returns the outputs and the
    last states.
    """
    if batch_first:
        x = x.transpose(0, 1)
        states = [None if s is None else s.transpose(0, 1) for s in states]
    if direction == "reverse":
        x = x.flip(0)
    order = _GATES[kind]

    def gates(rows):
        parts = rows.chunk(len(order))
        return torch.cat([parts[i] for i in order]) if len(order) > 1 else rows

    count, rows, hidden = r.shape
    b = x.new_zeros(count, 2 * rows) if b is None else b
    weights = [
        gates(part) for d in range(count) for part in (w[d], r[d], *b[d].chunk(2))
    ]
    zero = x.new_zeros(count, x.shape[1], hidden)
    states = [(zero if s is None else s).contiguous() for s in states]
    begin = states if kind == "lstm" else states[0]
    train = torch.is_grad_enabled()
    out, *ends = getattr(torch, kind)(
        *(x, begin, weights, True, 1, 0.0, train, count == 2, False)
    )
    y = out.unflatten(-1, (count, hidden)).transpose(1, 2)
    if direction == "reverse":
        y = y.flip(0)
    if batch_first:
        y, ends = y.permute(2, 0, 1, 3), [e.transpose(0, 1) for e in ends]
    return (y, *ends)


def _gradients(run, operands, gradients):
    """
    Returns the gradients of `operands`, given `gradients`, the gradients of the results
    of `run`. The function calls `run` again, and lets PyTorch differentiate this call.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [tensor.detach().clone().requires_grad_() for tensor in operands]
        results = run(*leaves)
        given = [gradient.clone() for gradient in gradients]
        return torch.autograd.grad(results, leaves, given)


def _biases(bias, gates, hidden):
    """Returns the input bias and the recurrent bias of one direction."""
    if bias is None:
        return 0.0, torch.zeros(gates * hidden, device=here())
    return bias.chunk(2)


def rnn(x, w, r, b, lengths, start, **order):
    if lengths is None:
        return _kernel("rnn_tanh", x, w, r, b, [start], **order)

    def make_step(w, r, b):
        own, recurrent = _biases(b, 1, r.shape[-1])
        return lambda x, h: (torch.tanh(x @ w.t() + h @ r.t() + own + recurrent),)

    return _layer(make_step, x, (w, r, b), lengths, [start], **order)


def gru(x, w, r, b, lengths, start, linear_before_reset, **order):
    if lengths is None and linear_before_reset:
        return _kernel("gru", x, w, r, b, [start], **order)

    def make_step(w, r, b):
        own, recurrent = _biases(b, 3, r.shape[-1])
        hidden = r.shape[-1]

        def step(x, h):
            left, right = x @ w.t() + own, h @ r.t() + recurrent
            update, reset = torch.sigmoid(
                left[:, : 2 * hidden] + right[:, : 2 * hidden]
            ).chunk(2, 1)
            if linear_before_reset:
                inner = reset * right[:, 2 * hidden :]
            else:
                inner = (reset * h) @ r[2 * hidden :].t() + recurrent[2 * hidden :]
            new = torch.tanh(left[:, 2 * hidden :] + inner)
            return ((1 - update) * new + update * h,)

        return step

    return _layer(make_step, x, (w, r, b), lengths, [start], **order)


def lstm(x, w, r, b, lengths, start, start_cell, peepholes, **order):
    if lengths is None and peepholes is None:
        return _kernel("lstm", x, w, r, b, [start, start_cell], **order)

    def make_step(w, r, b, p):
        own, recurrent = _biases(b, 4, r.shape[-1])
        if p is None:
            see_input = see_output = see_forget = 0.0
        else:
            see_input, see_output, see_forget = p.chunk(3)

        def step(x, h, c):
            gates = x @ w.t() + h @ r.t() + own + recurrent
            i, o, f, new = gates.chunk(4, 1)
            i = torch.sigmoid(i + see_input * c)
            f = torch.sigmoid(f + see_forget * c)
            c = f * c + i * torch.tanh(new)
            o = torch.sigmoid(o + see_output * c)
            return o * torch.tanh(c), c

        return step

    states = [start, start_cell]
    return _layer(make_step, x, (w, r, b, peepholes), lengths, states, **order)


def rnn_grad(dy, dh, x, w, r, b, h, **order):
    def run(x, w, r, b, h):
        return rnn(x, w, r, b, None, h, **order)

    return _gradients(run, (x, w, r, b, h), (dy, dh))


def gru_grad(dy, dh, x, w, r, b, h, **order):
    def run(x, w, r, b, h):
        return gru(x, w, r, b, None, h, **order)

    return _gradients(run, (x, w, r, b, h), (dy, dh))


def lstm_grad(c, dc, dy, dh, x, w, r, b, h, **order):
    def run(c, x, w, r, b, h):
        return lstm(x, w, r, b, None, h, c, None, **order)

    return _gradients(run, (c, x, w, r, b, h), (dy, dh, dc))
