"""
NumPy kernels of reductions, searches for extremes, and pooling, with PyTorch's
semantics: integers are summed in 64 bits, 16-bit floats in 32 bits, and NaN is larger
than any number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distir.dialects.onnx_ops.op import OnnxOp
from distir.interpreters.kernels import Kernel, kernel
from distir.interpreters.window_kernels import Windows

Array = npt.NDArray[Any]


def is_float(x: Array) -> bool:
    """
    Whether the elements of `x` are floats. Floats that NumPy does not have itself, such
    as bf16 and 8-bit floats, are floats too.
    """
    return x.dtype.kind in "fV"


def widened(x: Array) -> Array:
    """
    Returns `x` in the type in which its elements are summed. Floats get at least 32
    bits, integers 64.
    """
    if is_float(x):
        return x.astype(np.promote_types(x.dtype, np.float32))
    return x.astype(np.uint64 if x.dtype.kind == "u" else np.int64)


def comparable(x: Array) -> Array:
    """
    Returns floats in at least 32 bits, because the narrow floats of `ml_dtypes` compare
    NaN wrongly. Arrays of other types are returned unchanged.
    """
    return widened(x) if is_float(x) else x


def reduced_axes(op: OnnxOp, inputs: Sequence[Any]) -> tuple[int, ...]:
    """
    Returns the axes that a reduction reduces, in order. If the op gives no axes, the
    result is all axes, or an empty tuple if the op's attribute `noop_with_empty_axes`
    is set.
    """
    rank = inputs[0].ndim
    given = inputs[1] if len(inputs) > 1 else None
    if given is not None and given.size:
        return tuple(sorted(int(axis) % rank for axis in given))
    return () if op.attribute("noop_with_empty_axes") else tuple(range(rank))


def _floats(x: Array) -> Array:
    return x if is_float(x) else x.astype(np.float64)


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    count = math.prod(x.shape[axis] for axis in axes)
    total = x.sum(axes, keepdims=True)
    if is_float(x):
        return total / count
    # A mean of integers is rounded towards zero; the mean of no elements is 0.
    whole, count = np.abs(total) // max(count, 1), max(count, 1)
    return np.where(total < 0, -whole, whole) if x.dtype.kind == "i" else total // count


def _norm(x: Array, axes: tuple[int, ...]) -> Array:
    return np.sqrt(np.square(_floats(x)).sum(axes, keepdims=True))


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    x = _floats(x)
    largest = x.max(axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0)
    return np.log(np.exp(x - shift).sum(axes, keepdims=True)) + shift


_SUMS: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "Mean": _mean,
    "Sum": lambda x, axes: x.sum(axes, keepdims=True),
    "L1": lambda x, axes: np.abs(x).sum(axes, keepdims=True),
    "L2": _norm,
    "LogSum": lambda x, axes: np.log(_floats(x).sum(axes, keepdims=True)),
    "LogSumExp": _log_sum_exp,
    "SumSquare": lambda x, axes: np.square(x).sum(axes, keepdims=True),
}


def _sum(kind: str) -> Kernel:
    def compute(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
        """
        Computes a reduction in wide types. `onnx.reference` adds and squares integers
        in their own type, so sums overflow, and returns NaN as the log-sum-exp of
        infinity.
        """
        x: Array = inputs[0]
        axes = reduced_axes(op, inputs)
        with np.errstate(all="ignore"):
            found = np.asarray(_SUMS[kind](widened(x), axes)).astype(x.dtype)
        return [found if op.attribute("keepdims") else found.squeeze(axes)]

    return compute


for _kind in _SUMS:
    kernel(f"onnx.Reduce{_kind}")(_sum(_kind))


@kernel("onnx.ReduceMax", "onnx.ReduceMin")
def extreme(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
    """
    Computes maxima or minima along axes, because `onnx.reference` loses NaN in bf16.
    """
    x: Array = inputs[0]
    axes = reduced_axes(op, inputs)
    largest = op.name == "onnx.ReduceMax"
    if x.dtype == bool:
        start: Any = not largest
    elif is_float(x):
        start = -np.inf if largest else np.inf
    else:
        limits = np.iinfo(x.dtype)
        start = limits.min if largest else limits.max
    function = np.max if largest else np.min
    keep = bool(op.attribute("keepdims"))
    found = function(comparable(x), axis=axes, keepdims=keep, initial=start)
    return [np.asarray(found).astype(x.dtype)]


@kernel("onnx.ArgMax", "onnx.ArgMin")
def arg_extreme(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes the indices of maxima or minima. Replaces the kernel of `onnx.reference`,
    which never picks a NaN in bf16.
    """
    x, axis = comparable(inputs[0]), op.attribute("axis")
    function = np.argmax if op.name == "onnx.ArgMax" else np.argmin
    if op.attribute("select_last_index"):
        found = x.shape[axis] - 1 - function(np.flip(x, axis), axis)
    else:
        found = function(x, axis)
    found = np.asarray(found)
    return [np.expand_dims(found, axis) if op.attribute("keepdims") else found]


@kernel("onnx.Hardmax")
def hardmax(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Puts 1 at the first maximum along an axis and 0 elsewhere. `onnx.reference` puts no
    1 if an element is NaN, and fails for empty tensors.
    """
    (x,) = inputs
    result = np.zeros_like(x)
    axis = op.attribute("axis")
    if x.size:
        places = np.argmax(comparable(x), axis, keepdims=True)
        np.put_along_axis(result, places, np.ones((), x.dtype), axis)
    return [result]


@kernel("onnx.TopK")
def top_k(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes the largest or smallest elements along an axis and their indices, because
    `onnx.reference` does not order NaN. In PyTorch NaN is larger than any number.
    """
    x, count = inputs[0], int(inputs[1].reshape(-1)[0])
    axis, wide = op.attribute("axis"), comparable(inputs[0])
    if op.attribute("largest"):
        # Equal elements keep their order: sort the flipped array stably, and flip back.
        order = np.argsort(np.flip(wide, axis), axis, kind="stable")
        order = np.flip(x.shape[axis] - 1 - order, axis)
    else:
        order = np.argsort(wide, axis, kind="stable")
    places = order.take(range(count), axis)
    return [np.take_along_axis(x, places, axis), places.astype(np.int64)]


def _windowed(op: OnnxOp, x: Array) -> tuple[Windows, Array]:
    """
    Returns the windows of a pooling over `x`, and their elements along a new last
    dimension. Elements outside of `x` are zero.
    """
    windows = Windows.of(
        op,
        x.shape[2:],
        op.attribute("kernel_shape"),
        ceil=bool(op.attribute("ceil_mode")),
    )
    view = windows.view(x, 0)
    return windows, view.reshape(*view.shape[: x.ndim], math.prod(windows.kernel))


@kernel("onnx.AveragePool")
def average_pool(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes an average pooling, because `onnx.reference` leaves NaN out of its means.
    """
    x = widened(inputs[0])
    windows, elements = _windowed(op, x)
    counted = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if op.attribute("count_include_pad"):
        # Elements that ceil mode adds beyond the padding do not count.
        margins = [
            (begin, end - beyond)
            for (begin, end), beyond in zip(windows.pads, windows.beyond, strict=True)
        ]
        counted = np.pad(counted, ((0, 0), (0, 0), *margins), constant_values=1)
        rest = tuple((0, beyond) for beyond in windows.beyond)
        padded = Windows(windows.kernel, windows.strides, windows.dilations, rest)
        counts = padded.view(counted, 0)
    else:
        counts = windows.view(counted, 0)
    number = counts.reshape(*counts.shape[: x.ndim], math.prod(windows.kernel)).sum(-1)
    return [(elements.sum(-1) / number).astype(inputs[0].dtype)]


@kernel("onnx.LpPool")
def lp_pool(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes a pooling by p-norms, because `onnx.reference` leaves NaN out of its norms.
    """
    x, p = widened(inputs[0]), op.attribute("p")
    _, elements = _windowed(op, x)
    total = np.power(np.abs(elements), p).sum(-1)
    return [np.power(total, 1 / p).astype(inputs[0].dtype)]


@kernel("onnx.LpNormalization")
def lp_normalization(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Divides `x` by its p-norm along an axis, because `onnx.reference` divides infinity
    by itself differently in different types.
    """
    x, axis, p = widened(inputs[0]), op.attribute("axis"), op.attribute("p")
    # The square of a small number may be 0, so a single element is not squared.
    is_sum = p == 1 or x.shape[axis] == 1
    norm = (np.abs(x) if is_sum else np.square(x)).sum(axis, keepdims=True)
    norm = norm if is_sum else np.sqrt(norm)
    # If all elements are zero, so is the result.
    safe = np.where(norm == 0, np.ones((), norm.dtype), norm)
    return [np.asarray(x / safe).astype(inputs[0].dtype)]


@kernel("onnx.CumSum", "onnx.CumProd")
def cumulative(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes running sums or products, accumulating floats in wider floats as PyTorch
    does. PyTorch exports the axis as a list of one number, which `onnx.reference`
    refuses.
    """
    x, given = inputs
    axis, is_sum = int(given.reshape(-1)[0]), op.name == "onnx.CumSum"
    x = np.flip(x, axis) if op.attribute("reverse") else x
    double = np.float32 if x.dtype.itemsize < 4 else np.float64
    wide = double if is_float(x) else x.dtype
    total = (np.cumsum if is_sum else np.cumprod)(x, axis, dtype=wide).astype(x.dtype)
    if op.attribute("exclusive"):
        first = total.take([0][: x.shape[axis]], axis)
        start = np.zeros_like(first) if is_sum else np.ones_like(first)
        total = np.concatenate(
            [start, total.take(range(x.shape[axis] - 1), axis)], axis
        )
    return [np.flip(total, axis) if op.attribute("reverse") else total]


_SCATTERED: Mapping[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@kernel("onnx.ScatterElements")
def scatter_elements(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Writes or accumulates updates at indices of a tensor, because `onnx.reference` loses
    NaN when it accumulates minima and maxima.
    """
    data, indices, updates = inputs
    places: list[Any] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    places[op.attribute("axis") % data.ndim] = indices
    reduction = op.attribute("reduction")
    if reduction == "none":
        found = data.copy()
        found[tuple(places)] = updates
        return [found]
    found = comparable(data).copy() if reduction in ("min", "max") else data.copy()
    _SCATTERED[reduction].at(found, tuple(places), updates.astype(found.dtype))
    return [found.astype(data.dtype)]
