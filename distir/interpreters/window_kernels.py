"""
NumPy kernels of convolutions and of max pooling, over the windows of a padded array. A
kernel takes an op and its inputs, as in `distir.interpreters.kernels`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distir.dialects.onnx_ops.op import OnnxOp
from distir.interpreters.kernels import kernel

Array = npt.NDArray[Any]


def _spacing(
    op: OnnxOp, rank: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """
    Returns the strides, dilations and pads of an op with `rank` spatial dimensions. A
    missing attribute has ONNX's default.
    """
    return (
        tuple(op.attribute("strides") or [1] * rank),
        tuple(op.attribute("dilations") or [1] * rank),
        tuple(op.attribute("pads") or [0] * (2 * rank)),
    )


@dataclass(frozen=True)
class Windows:
    """
    The positions of the windows of a convolution or pooling in each spatial dimension.
    `pads` holds the padding (begin, end) of each dimension. `beyond` is the additional
    padding at the end that ceil mode adds, or that an input shorter than a window
    needs. ONNX rounds sizes toward 0, so one window exists even if the padded input is
    shorter than the window by less than a stride.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    beyond: tuple[int, ...] = ()

    @staticmethod
    def of(
        op: OnnxOp,
        space: Sequence[int],
        kernel_shape: Sequence[int],
        *,
        ceil: bool = False,
    ) -> Windows:
        """
        Returns the windows of a convolution or pooling over an input whose spatial
        dimensions have the sizes `space`. With `ceil`, the last window may extend
        beyond the padded input.
        """
        rank = len(space)
        strides, dilations, flat = _spacing(op, rank)
        automatic = op.attribute("auto_pad") or "NOTSET"
        pads: list[tuple[int, int]] = []
        beyond = [0] * rank
        for i, size in enumerate(space):
            extent = (kernel_shape[i] - 1) * dilations[i] + 1
            if automatic.startswith("SAME"):
                count = -(-size // strides[i])
                total = max((count - 1) * strides[i] + extent - size, 0)
                small, large = total // 2, total - total // 2
                pads.append(
                    (large, small) if automatic == "SAME_LOWER" else (small, large)
                )
                continue
            begin, end = (0, 0) if automatic == "VALID" else (flat[i], flat[i + rank])
            free = size + begin + end - extent
            if ceil:
                count = -(-free // strides[i]) + 1
                if (count - 1) * strides[i] >= size + begin:
                    count -= 1
                beyond[i] = max((count - 1) * strides[i] - free, 0)
            elif -strides[i] < free < 0:
                beyond[i] = -free
            pads.append((begin, end + beyond[i]))
        given = (tuple(kernel_shape), strides, dilations, tuple(pads))
        return Windows(*given, tuple(beyond))

    def view(self, x: Array, fill: Any) -> Array:
        """
        Returns `x` of shape (N, C, *space), padded with `fill`, as a view of shape (N,
        C, *windows, *kernel). A dimension in which no window fits has no windows.
        """
        rank = len(self.kernel)
        x = np.pad(x, ((0, 0), (0, 0), *self.pads), constant_values=fill)
        extents = [
            (k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)
        ]
        if any(n < e for n, e in zip(x.shape[2:], extents, strict=True)):
            counts = [
                max((n - e) // s + 1, 0)
                for n, e, s in zip(x.shape[2:], extents, self.strides, strict=True)
            ]
            return np.empty((*x.shape[:2], *counts, *self.kernel), x.dtype)
        view = np.lib.stride_tricks.sliding_window_view(
            x, extents, axis=tuple(range(2, 2 + rank))
        )
        steps = (*self.strides, *self.dilations)
        return view[(slice(None), slice(None), *(slice(None, None, s) for s in steps))]


@kernel("onnx.Conv")
def convolution(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
    """
    Computes a convolution as products of matrices, because `onnx.reference` is slow: a
    small convolution takes 24 ms.
    """
    x, w = inputs[0], inputs[1]
    groups = op.attribute("group")
    rank = x.ndim - 2
    windows = Windows.of(op, x.shape[2:], w.shape[2:]).view(x, 0)
    space = tuple(range(2 + rank, 2 + 2 * rank))
    parts: list[Array] = []
    for part, weight in zip(
        np.split(windows, groups, axis=1), np.split(w, groups), strict=True
    ):
        over = ((1, *space), tuple(range(1, 2 + rank)))
        parts.append(np.moveaxis(np.tensordot(part, weight, over), -1, 1))
    result = np.concatenate(parts, axis=1)
    if len(inputs) > 2 and inputs[2] is not None:
        result = result + inputs[2].reshape(-1, *[1] * rank)
    return [result.astype(x.dtype)]


@kernel("onnx.MaxPool")
def max_pool(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes a max pooling and the indices of the maxima, because `onnx.reference` can
    return wrong indices.
    """
    x = inputs[0]
    space = x.shape[2:]
    ceil = bool(op.attribute("ceil_mode"))
    windows = Windows.of(op, space, op.attribute("kernel_shape"), ceil=ceil)
    lowest = -np.inf if x.dtype.kind in "fV" else np.iinfo(x.dtype).min
    # NumPy ignores NaN when it compares bf16.
    wide = x.astype(np.promote_types(x.dtype, np.float32)) if x.dtype.kind == "V" else x
    view = windows.view(wide, lowest)
    rank = len(space)
    flat = view.reshape(*view.shape[: 2 + rank], math.prod(windows.kernel))
    largest = flat.max(axis=-1)
    if len(op.results) == 1:
        return [largest.astype(x.dtype)]
    # Positions go through the same windows; a padded place never wins over a real one.
    order = "F" if op.attribute("storage_order") else "C"
    numbers = np.arange(math.prod(space)).reshape(space, order=order)
    numbers = windows.view(numbers[None, None], -1).reshape(1, 1, *flat.shape[2:])
    masked = np.where(numbers < 0, lowest, flat)
    is_largest = (masked == largest[..., None]) | np.isnan(masked)
    best = np.argmax(is_largest & (numbers >= 0), axis=-1)
    chosen = np.take_along_axis(
        np.broadcast_to(numbers, flat.shape), best[..., None], axis=-1
    )[..., 0]
    maps = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * rank)
    return [
        largest.astype(x.dtype),
        (chosen + maps * math.prod(space)).astype(np.int64),
    ]


@dataclass(frozen=True)
class TransposedWindows:
    """
    The positions of the windows of a transposed convolution in its result. In each
    spatial dimension, all windows together cover `extents` elements. The result
    consists of the `sizes` elements from index `starts` on.
    """

    strides: Sequence[int]
    dilations: Sequence[int]
    extents: Sequence[int]
    starts: Sequence[int]
    sizes: Sequence[int]

    @staticmethod
    def of(
        op: OnnxOp, space: Sequence[int], kernel_shape: Sequence[int]
    ) -> TransposedWindows:
        """
        Returns the windows of a ConvTranspose over an input whose spatial dimensions
        have the sizes `space`.
        """
        rank = len(space)
        strides, dilations, pads = _spacing(op, rank)
        extra = op.attribute("output_padding") or [0] * rank
        automatic = op.attribute("auto_pad") or "NOTSET"
        extents = [
            s * (n - 1) + (k - 1) * d + 1
            for s, n, k, d in zip(strides, space, kernel_shape, dilations, strict=True)
        ]
        reached = [n + e for n, e in zip(extents, extra, strict=True)]
        wanted = op.attribute("output_shape")
        if wanted is None and automatic.startswith("SAME"):
            wanted = [n * s for n, s in zip(space, strides, strict=True)]
        if wanted is None:
            starts = pads[:rank]
            sizes = [reached[i] - pads[i] - pads[i + rank] for i in range(rank)]
        else:
            sizes = wanted[-rank:]
            totals = [n - size for n, size in zip(reached, sizes, strict=True)]
            upper = automatic == "SAME_UPPER"
            starts = [n // 2 if upper else n - n // 2 for n in totals]
        return TransposedWindows(strides, dilations, extents, starts, sizes)


@kernel("onnx.ConvTranspose")
def transposed_convolution(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
    """
    Computes a transposed convolution, because `onnx.reference` splits the weights of
    several groups along the wrong dimension.
    """
    kind = inputs[0].dtype
    # NumPy cannot compute an einsum of bf16.
    x, w = (a.astype(np.result_type(a, np.float32)) for a in inputs[:2])
    space, taps = x.shape[2:], w.shape[2:]
    groups = op.attribute("group")
    windows = TransposedWindows.of(op, space, taps)
    shape = (len(x), groups * w.shape[1], *windows.extents)
    full = np.zeros(shape, np.result_type(x, w))
    for tap in np.ndindex(*taps):
        parts = [
            np.einsum("nc...,cm->nm...", part, weight[(..., *tap)])
            for part, weight in zip(
                np.split(x, groups, axis=1), np.split(w, groups), strict=True
            )
        ]
        steps = zip(tap, windows.dilations, windows.strides, space, strict=True)
        places = tuple(slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in steps)
        full[(slice(None), slice(None), *places)] += np.concatenate(parts, axis=1)
    for i, (start, size) in enumerate(zip(windows.starts, windows.sizes, strict=True)):
        full = _window(full, 2 + i, start, size)
    if len(inputs) > 2 and inputs[2] is not None:
        full = full + inputs[2].reshape(-1, *[1] * len(space))
    return [full.astype(kind)]


def _window(array: Array, axis: int, begin: int, count: int) -> Array:
    """
    Returns `count` elements of `array` along `axis`, starting at index `begin`.
    Elements outside of the array are zero.
    """
    size = array.shape[axis]
    margins = [(0, 0)] * array.ndim
    margins[axis] = (max(-begin, 0), max(begin + count - size, 0))
    padded = np.pad(array, margins)
    start = begin + margins[axis][0]
    return padded.take(range(start, start + count), axis=axis)
