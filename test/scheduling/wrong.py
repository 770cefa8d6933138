"""Kernels that are wrong, each in its own way, for tests."""

import os
import time

import torch
from mine import attention, backward


def off(q, k, v):
    """One percent too large."""
    return attention(q, k, v) * 1.01


def off_backward(q, k, v, gradient):
    """Right for queries and keys."""
    dq, dk, dv = backward(q, k, v, gradient)
    return dq, dk, dv * 1.01


class _Off(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return attention(q, k, v)

    @staticmethod
    def backward(ctx, gradient):
        dq, dk, dv = backward(*ctx.saved_tensors, gradient)
        return dq, 2 * dk, dv


def off_autograd(q, k, v):
    """Right, but PyTorch goes back through it wrongly."""
    return _Off.apply(q, k, v)


def two_gradients(q, k, v, gradient):
    """Not one for each argument."""
    return backward(q, k, v, gradient)[:2]


def modifies(q, k, v):
    """Scales its queries where they are."""
    out = attention(q, k, v)
    q.mul_(0.5)
    return out


def by_heads(q, k, v):
    """Right for 4 heads alone."""
    out = attention(q, k, v)
    return out * (q.shape[-1] / 16)


def random(q, k, v):
    """Not the same twice."""
    return attention(q, k, v) + 1e-6 * torch.rand(())


def half(q, k, v):
    """Of another type."""
    return attention(q, k, v).half()


def fails(q, k, v):
    """Raises."""
    return q @ k


def hangs(q, k, v):
    """Never ends."""
    time.sleep(1000)


def dies(q, k, v):
    """Takes the process with it."""
    os._exit(3)
