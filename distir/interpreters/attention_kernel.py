"""The NumPy kernel of ONNX's attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import element_type, numpy_dtype
from distir.interpreters.kernels import kernel

Array = npt.NDArray[Any]


def _by_head(x: Array, heads: int | None) -> Array:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    if x.ndim == 4:
        return x
    assert heads is not None
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _bias(
    op: OnnxOp, inputs: Sequence[Any], lengths: tuple[int, int], past: int
) -> Array:
    """The addend of scores: the mask, and minus infinity where a key is hidden."""
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
    `onnx.reference` rounds each step to 16 bits, gives its causal mask the shape of the
    other mask, and makes 0 of NaN. A query that sees no key gives 0, as in PyTorch and
    onnxruntime.
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
    # The sum is made in the type of the operands, in which a lowest number may be infinite.
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
