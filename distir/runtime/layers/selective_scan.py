"""
The recurrence of selective state spaces, computed step by step. The operands x and dt
are [batch, channels, steps], a is [channels, states], b and c are [batch, states,
steps].
"""

from math import isqrt

import torch


def _widened(*tensors):
    """Returns the tensors in a common type of at least 32 bits."""
    wide = torch.float32
    for tensor in tensors:
        wide = torch.promote_types(wide, tensor.dtype)
    return [tensor.to(wide) for tensor in tensors]


def _start(x, a):
    return x.new_zeros(*x.shape[:2], a.shape[1])


def _next(state, x, dt, a, b, t):
    """Returns the state after step `t`, given the state before this step."""
    decay = torch.exp(dt[:, :, t, None] * a)
    return decay * state + (dt * x)[:, :, t, None] * b[:, None, :, t]


def selective_scan(x, dt, a, b, c):
    wide = _widened(x, dt, a, b, c)
    state, y = _start(wide[0], a), torch.empty_like(wide[0])
    for t in range(x.shape[2]):
        state = _next(state, *wide[:4], t)
        y[:, :, t] = (state * wide[4][:, None, :, t]).sum(-1)
    return y.to(x.dtype)


def selective_scan_grad(dy, x, dt, a, b, c):
    """
    Returns the gradients of all operands. To save memory, the states are kept only
    before every chunk of about sqrt(steps) steps, and recomputed chunk by chunk.
    """
    kinds = [tensor.dtype for tensor in (x, dt, a, b, c)]
    dy, x, dt, a, b, c = _widened(dy, x, dt, a, b, c)
    steps = x.shape[2]
    size = max(1, isqrt(steps))
    starts, state = [], _start(x, a)
    for t in range(steps):
        if t % size == 0:
            starts.append(state)
        state = _next(state, x, dt, a, b, t)
    found = dx, ddt, da, db, dc = [torch.zeros_like(v) for v in (x, dt, a, b, c)]
    slope = torch.zeros_like(state)  # what later steps add to a state's gradient
    for first in reversed(range(0, steps, size)):
        states = [starts.pop()]
        for t in range(first, min(first + size, steps)):
            states.append(_next(states[-1], x, dt, a, b, t))
        for t in reversed(range(first, min(first + size, steps))):
            here, time = dy[:, :, t, None], dt[:, :, t, None]
            slope = slope + here * c[:, None, :, t]
            dc[:, :, t] = (states.pop() * here).sum(1)
            decay = torch.exp(time * a)
            exponent = slope * states[-1] * decay
            given = (slope * b[:, None, :, t]).sum(-1)
            dx[:, :, t] = given * dt[:, :, t]
            ddt[:, :, t] = (exponent * a).sum(-1) + given * x[:, :, t]
            da += (exponent * time).sum(0)
            db[:, :, t] = (slope * time * x[:, :, t, None]).sum(1)
            slope = slope * decay
    return [value.to(kind) for value, kind in zip(found, kinds, strict=True)]
