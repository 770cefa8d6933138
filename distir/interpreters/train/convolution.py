"""Gradients of convolutions and pooling, on arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from math import prod

import numpy as np

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.convolution import (
    AveragePoolGradOp,
    ConvGradInputOp,
    ConvGradWeightOp,
    MaxPoolGradOp,
    PoolGradOp,
    WindowsOp,
)
from distir.interpreters.train.arithmetic import Array, computes
from distir.interpreters.window_kernels import Windows

Slices = tuple[slice, ...]


def _reach(
    op: WindowsOp, sizes: Sequence[int], kernel: Sequence[int], windows: Sequence[int]
) -> list[tuple[int, int]]:
    """
    Returns the padding (begin, end) of each spatial dimension. The padding at the end
    also includes elements that the last window needs beyond the declared padding.
    """
    margins: list[tuple[int, int]] = []
    for axis, (before, after) in enumerate(op.margins):
        last = (windows[axis] - 1) * op.steps[axis]
        end = last + (kernel[axis] - 1) * op.spacing[axis] + 1
        margins.append((before, max(after, end - before - sizes[axis])))
    return margins


def _taps(
    op: WindowsOp, kernel: Sequence[int], windows: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Slices]]:
    """
    Yields each element of the kernel, with the slices of the padded input that all
    windows multiply by the element.
    """
    for tap in np.ndindex(*kernel):
        yield (
            tap,
            tuple(
                slice(t * d, t * d + s * (n - 1) + 1, s)
                for t, d, s, n in zip(tap, op.spacing, op.steps, windows, strict=True)
            ),
        )


def _cropped(padded: Array, margins: Sequence[tuple[int, int]]) -> Array:
    """
    Returns `padded` without its padding. `margins` gives the padding (begin, end) of
    each spatial dimension.
    """
    inside = (
        slice(before, size - after)
        for (before, after), size in zip(margins, padded.shape[2:], strict=True)
    )
    return padded[(..., *inside)]


def _padded_zeros(
    shape: Sequence[int], margins: Sequence[tuple[int, int]], like: Array
) -> Array:
    space = [n + sum(m) for n, m in zip(shape[2:], margins, strict=True)]
    return np.zeros((*shape[:2], *space), like.dtype)


def _view(
    op: WindowsOp, x: Array, kernel: Sequence[int], windows: Sequence[int], fill: float
) -> Array:
    """
    Returns the windows of `x`, padded with `fill`, as a view `[N, C, *windows,
    *kernel]`.
    """
    margins = tuple(_reach(op, x.shape[2:], kernel, windows))
    return Windows(tuple(kernel), op.steps, op.spacing, margins).view(x, fill)


@computes(ConvGradInputOp)
def convolution_input(op: ConvGradInputOp, dy: Array, weight: Array) -> Array:
    kernel, windows = weight.shape[2:], dy.shape[2:]
    margins = op.margins
    dx = _padded_zeros(shape_of(op.dx), margins, dy)
    for tap, place in _taps(op, kernel, windows):
        parts = [
            np.einsum("nm...,mc->nc...", part, taps[(..., *tap)])
            for part, taps in zip(
                np.split(dy, op.groups, axis=1),
                np.split(weight, op.groups),
                strict=True,
            )
        ]
        dx[(..., *place)] += np.concatenate(parts, axis=1)
    return _cropped(dx, margins)


@computes(ConvGradWeightOp)
def convolution_weight(op: ConvGradWeightOp, x: Array, dy: Array) -> Array:
    view = _view(op, x, shape_of(op.dweight)[2:], dy.shape[2:], 0)
    over = (0, *range(2, x.ndim))
    parts = [
        np.tensordot(gradient, part, (over, over))
        for gradient, part in zip(
            np.split(dy, op.groups, axis=1),
            np.split(view, op.groups, axis=1),
            strict=True,
        )
    ]
    return np.concatenate(parts)


@computes(MaxPoolGradOp)
def max_pool(op: MaxPoolGradOp, dy: Array, x: Array) -> Array:
    windows = dy.shape[2:]
    view = _view(op, x, op.kernel, windows, -np.inf)
    best = view.reshape(*dy.shape, prod(op.kernel)).argmax(-1)
    terms = (np.where(best == number, dy, 0) for number in range(prod(op.kernel)))
    return _spread(op, x.shape, terms, windows)


@computes(AveragePoolGradOp)
def average_pool(op: AveragePoolGradOp, dy: Array) -> Array:
    share = dy / reduce(np.multiply.outer, map(np.array, op.counts()))
    share = share.astype(dy.dtype)
    terms = (share for _ in range(prod(op.kernel)))
    return _spread(op, shape_of(op.dx), terms, dy.shape[2:])


def _spread(
    op: PoolGradOp, shape: Sequence[int], terms: Iterator[Array], windows: Sequence[int]
) -> Array:
    """
    Returns the gradient of a pooling's input, an array of shape `shape`. `terms` yields
    one array for each element of the kernel, with one entry per window. Each entry is
    added to the input element that the kernel element covers in this window.
    """
    margins = _reach(op, shape[2:], op.kernel, windows)
    out: Array | None = None
    for (_, place), term in zip(_taps(op, op.kernel, windows), terms, strict=True):
        if out is None:
            out = _padded_zeros(shape, margins, term)
        out[(..., *place)] += term
    assert out is not None
    return _cropped(out, margins)
