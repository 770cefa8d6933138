"""
NumPy kernels that replace kernels of `onnx.reference` where these are wrong or slow.

A kernel gets the op and its inputs by schema position (None for omitted ones), and
returns the op's results. The docstring of a kernel says why it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import element_type, numpy_dtype
from distir.dialects.registries import Registry
from distir.interpreters.sampling import Sampling

Array = npt.NDArray[Any]
Kernel = Callable[[OnnxOp, Sequence[Any]], list[Any]]

kernel = Registry[Kernel](__name__)
"""Registers a kernel for the ops with the given names."""


@kernel("onnx.Constant")
def constant(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
    return [np.asarray(op.attribute("value"))]


@kernel("onnx.GatherElements")
def gather_elements(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Picks elements along an axis, because `onnx.reference` fails for a negative axis and
    for more than 64 rows.
    """
    data, indices = inputs
    positions: list[Any] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    positions[op.attribute("axis") % data.ndim] = indices
    return [data[tuple(positions)]]


@kernel("onnx.GatherND")
def gather_nd(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Gathers all elements or slices with one indexing operation. `onnx.reference` gathers
    the elements one at a time, which is too slow for the millions of indices that a
    boolean mask can give.
    """
    data, indices = inputs
    batch = op.attribute("batch_dims")
    places = np.moveaxis(indices, -1, 0)
    others = [1] * (places.ndim - 1 - batch)
    own = np.ix_(*map(np.arange, data.shape[:batch]))
    rows = (each.reshape(*each.shape, *others) for each in own)
    return [data[(*rows, *places)]]


@kernel("onnx.GlobalMaxPool")
def global_max_pool(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes the maximum of each channel, because `onnx.reference` returns a wrong shape
    unless there are two spatial dimensions.
    """
    (x,) = inputs
    return [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]


@kernel("onnx.Mean")
def mean(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes the elementwise mean of several tensors. `onnx.reference` adds all tensors
    to the first tensor, so it fails if the first tensor is smaller than the result.
    """
    kind = np.promote_types(inputs[0].dtype, np.float32)
    total = inputs[0].astype(kind)
    for value in inputs[1:]:
        total = total + value.astype(kind)
    return [np.asarray(total / len(inputs)).astype(inputs[0].dtype)]


@kernel("onnx.HardSwish")
def hard_swish(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes `x * clip(x + 3, 0, 6) / 6` in the order of PyTorch, so that the largest
    numbers overflow as in PyTorch. `onnx.reference` multiplies by a sixth in 32 bits,
    even if `x` has 64.
    """
    x = inputs[0].astype(np.promote_types(inputs[0].dtype, np.float32))
    return [(x * np.clip(x + 3, 0, 6) / 6).astype(inputs[0].dtype)]


_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """Returns the error function of `x`, computed in float64."""
    return np.asarray(_erf(x.astype(np.float64)), dtype=np.float64)


@kernel("onnx.Erf")
def error_function(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    return [erf(inputs[0]).astype(inputs[0].dtype)]


@kernel("onnx.Gelu")
def gelu(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    source = inputs[0]
    x = source.astype(np.float64 if source.dtype == np.float64 else np.float32)
    if op.attribute("approximate") == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        result = 0.5 * x * (1 + np.tanh(inner))
    else:
        result = 0.5 * x * (1 + erf(x / math.sqrt(2)))
    return [result.astype(source.dtype)]


@kernel("onnx.Einsum")
def einsum(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes an Einsum with matrix products where possible. `onnx.reference` uses none,
    and cannot add in bf16.
    """
    narrow = inputs[0].dtype.itemsize == 2 and inputs[0].dtype.kind in "fV"
    operands = [x.astype(np.float32) for x in inputs] if narrow else inputs
    result = np.einsum(op.attribute("equation"), *operands, optimize=True)
    return [result.astype(inputs[0].dtype)]


@kernel("onnx.LRN")
def local_response_normalization(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes an LRN, because `onnx.reference` leaves out channels if there are more
    channels than samples.
    """
    x = inputs[0].astype(np.promote_types(inputs[0].dtype, np.float32))
    size = op.attribute("size")
    squares = np.square(x)
    total = np.empty_like(x)
    for c in range(x.shape[1]):
        near = slice(max(0, c - (size - 1) // 2), c + size // 2 + 1)
        total[:, c] = squares[:, near].sum(axis=1)
    scale = op.attribute("bias") + op.attribute("alpha") / size * total
    return [(x / scale ** op.attribute("beta")).astype(inputs[0].dtype)]


@kernel("onnx.Pad")
def pad(op: OnnxOp, inputs: Sequence[Array | None]) -> list[Array]:
    """Pads or crops a tensor. Negative pads crop; `onnx.reference` refuses them."""
    x, pads, value, axes = [*inputs, None, None][:4]
    assert x is not None and pads is not None
    over = range(x.ndim) if axes is None else axes.reshape(-1)
    margins = [(0, 0)] * x.ndim
    for i, axis in enumerate(over):
        begin, end = int(pads[i]), int(pads[i + len(over)])
        size = x.shape[axis]
        x = x.take(range(max(-begin, 0), size - max(-end, 0)), axis=int(axis))
        margins[axis] = (max(begin, 0), max(end, 0))
    mode = op.attribute("mode")
    if mode != "constant":
        return [np.pad(x, margins, mode=mode)]
    fill = np.zeros((), x.dtype) if value is None else value.reshape(())
    return [np.pad(x, margins, constant_values=fill)]


def _normalized(op: OnnxOp, x: Array, centered: bool) -> tuple[Array, Array, Array]:
    """
    Returns three arrays: `x` normalised over the dimensions from the op's `axis` on,
    the means over these dimensions, and the inverse standard deviations. The means are
    subtracted only if `centered` is set.
    """
    stash = numpy_dtype(element_type(op.attribute("stash_type")))
    wide = x.astype(np.promote_types(x.dtype, stash) if x.dtype.kind == "f" else stash)
    over = tuple(range(op.attribute("axis") % x.ndim, x.ndim))
    mean = wide.mean(over, keepdims=True)
    if centered:
        wide = wide - mean
    epsilon = wide.dtype.type(op.attribute("epsilon"))
    inverse = 1 / np.sqrt(np.square(wide).mean(over, keepdims=True) + epsilon)
    return (wide * inverse).astype(x.dtype), mean, inverse


@kernel("onnx.LayerNormalization")
def layer_normalization(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
    """
    Computes a layer norm in the op's stash type. `onnx.reference` supports only one
    stash type, and computes in half precision for all other stash types.
    """
    x, scale = inputs[:2]
    bias = inputs[2] if len(inputs) > 2 else None
    normal, *statistics = _normalized(op, x, centered=True)
    result = normal * scale if bias is None else normal * scale + bias
    return [result.astype(x.dtype), *statistics]


@kernel("onnx.RMSNormalization")
def rms_normalization(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes an RMS norm in the op's stash type. `onnx.reference` supports only one
    stash type, and computes in half precision for all other stash types.
    """
    x, scale = inputs
    normal, *_ = _normalized(op, x, centered=False)
    return [(normal.astype(scale.dtype) * scale).astype(scale.dtype)]


def _log_softmax(x: Array, axis: int) -> Array:
    """
    Returns the log-softmax of `x` along `axis`; 16-bit floats are computed in 32 bits.
    """
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    wide = wide - wide.max(axis, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis, keepdims=True))


@kernel("onnx.LogSoftmax")
def log_softmax(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes a log-softmax. `onnx.reference` takes the logarithm of a softmax instead,
    and the softmax may underflow to zero.
    """
    (x,) = inputs
    return [_log_softmax(x, op.attribute("axis")).astype(x.dtype)]


@kernel("onnx.SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
    """
    Computes a cross entropy from a log-softmax, for all labels at once.
    `onnx.reference` loops over labels, and takes the logarithm of a softmax, which may
    underflow to zero.
    """
    scores: Array = inputs[0]
    labels: Array = inputs[1]
    weights: Array | None = inputs[2] if len(inputs) > 2 else None
    logs = _log_softmax(scores, 1)
    ignored = op.attribute("ignore_index")
    is_counted = np.ones(labels.shape, bool) if ignored is None else labels != ignored
    places = np.where(is_counted, labels, 0)
    shares = is_counted.astype(logs.dtype)
    if weights is not None:
        shares *= weights.astype(logs.dtype)[places]
    found = np.take_along_axis(logs, np.expand_dims(places, 1), 1).squeeze(1)
    loss = np.where(is_counted, -found, 0) * shares
    if op.attribute("reduction") != "none":
        loss = loss.sum()
    if op.attribute("reduction") == "mean":
        loss = loss / shares.sum()
    return [np.asarray(a).astype(scores.dtype) for a in (loss, logs)[: len(op.results)]]


@kernel("onnx.GridSample")
def grid_sample(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
    """
    Samples an image at the points of a grid, because `onnx.reference` reads the wrong
    elements outside of the image in cubic mode.
    """
    x, grid = inputs
    kind = np.result_type(x, np.float32)
    sampling = Sampling(
        op.attribute("mode"),
        op.attribute("padding_mode"),
        bool(op.attribute("align_corners")),
    )
    return [sampling.samples(x.astype(kind), grid.astype(kind)).astype(x.dtype)]


@kernel("onnx.Det")
def determinant(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
    """
    Computes determinants, because `onnx.reference` does not support 16-bit floats.
    """
    (x,) = inputs
    found = np.linalg.det(x.astype(np.result_type(x, np.float32)))
    return [np.asarray(found).astype(x.dtype)]


def _by_head(x: Array, heads: int | None) -> Array:
    """
    Returns `x` of shape [batch, length, heads * size] as [batch, heads, length, size].
    An array with four dimensions is returned unchanged.
    """
    if x.ndim == 4:
        return x
    assert heads is not None
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _bias(
    op: OnnxOp, inputs: Sequence[Any], lengths: tuple[int, int], past: int
) -> Array:
    """
    Returns the bias of attention scores: the mask, and minus infinity where a query
    must not see a key. `lengths` holds the numbers of queries and keys, and `past` is
    the number of cached keys.
    """
    queries, keys = lengths
    mask, valid = inputs[3], inputs[6]
    bias = np.zeros((queries, keys))
    if mask is not None:
        added = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask
        missing = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
        bias = bias + np.pad(added.astype(np.float64), missing, constant_values=-np.inf)
    offset: Any = past
    if valid is not None:
        valid = valid.reshape(-1, 1, 1, 1)
        offset = offset if inputs[4] is not None else valid - queries
    behind = np.arange(queries)[:, None] + offset - np.arange(keys)
    seen = np.ones((), bool)
    if op.attribute("is_causal"):
        seen = seen & (behind >= 0)
    if op.attribute("left_window_size", -1) >= 0:
        seen = seen & (behind <= op.attribute("left_window_size"))
    if op.attribute("right_window_size", -1) >= 0:
        seen = seen & (-behind <= op.attribute("right_window_size"))
    if valid is not None:
        seen = seen & (np.arange(keys) < valid)
    return np.where(seen, bias, -np.inf)


@kernel("onnx.Attention")
def attention(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
    """
    Computes attention. `onnx.reference` rounds each step to 16 bits, gives its causal
    mask the shape of the other mask, and turns NaN into 0. A query that sees no key has
    the result 0, as in PyTorch and onnxruntime.
    """
    inputs = [*inputs, *[None] * (7 - len(inputs))]
    given: Array = inputs[0]
    kind = np.promote_types(given.dtype, np.float32)
    heads = op.attribute("q_num_heads"), op.attribute("kv_num_heads")
    q, k, v = (
        _by_head(x, h)
        for x, h in zip(inputs[:3], (heads[0], heads[1], heads[1]), strict=True)
    )
    past = 0
    if inputs[4] is not None:
        past = inputs[4].shape[2]
        k, v = np.concatenate((inputs[4], k), 2), np.concatenate((inputs[5], v), 2)
    repeats = q.shape[1] // k.shape[1]
    wide = [
        x.astype(kind) for x in (q, np.repeat(k, repeats, 1), np.repeat(v, repeats, 1))
    ]
    scale = op.attribute("scale")
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = (wide[0] @ wide[1].swapaxes(2, 3)) * kind.type(scale)
    cap = op.attribute("softcap")
    capped = kind.type(cap) * np.tanh(scores / kind.type(cap)) if cap else scores
    bias = _bias(op, inputs, (q.shape[2], k.shape[2]), past)
    # Round to the operands' type. The lowest number of a wider type becomes infinite.
    bias = bias.astype(given.dtype).astype(kind)
    biased = capped + bias
    precision = op.attribute("softmax_precision")
    exact = numpy_dtype(element_type(precision)) if precision else kind
    rows = biased.astype(np.promote_types(exact, np.float32))
    rows = np.exp(rows - rows.max(-1, keepdims=True, initial=-np.inf))
    weights = rows / rows.sum(-1, keepdims=True)
    is_blind = (bias == -np.inf).all(-1, keepdims=True)
    weights = np.where(is_blind, 0, weights).astype(kind)
    shown = (scores, capped, biased, weights)[op.attribute("qk_matmul_output_mode")]
    y = (weights @ wide[2]).astype(given.dtype)
    if given.ndim == 3:
        y = y.swapaxes(1, 2).reshape(*given.shape[:2], -1)
    return [y, k, v, shown.astype(given.dtype)][: len(op.results)]
