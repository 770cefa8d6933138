"""
Dropout and its random numbers on arrays; also attention with dropout of its
probabilities, and the cost of such attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from distir.dialects.train_ops.dropout import (
    DrawingOp,
    DropoutOp,
    DroppedAttentionBase,
    DroppedAttentionGradOp,
    DroppedAttentionOp,
)
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.train.arithmetic import Array, computes
from distir.interpreters.train.attention import (
    Attended,
    attended,
    attention_gradients,
    attention_results,
    logsumexp_of,
)

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)


def threefry(key: tuple[Any, Any], first: Any, second: Any) -> tuple[Array, Array]:
    """
    Returns the random numbers of Threefry-2x32 with 20 rounds (Salmon et al. 2011): two
    32-bit words for each counter `(first, second)`. Sums wrap around.
    """
    words = [np.atleast_1d(np.asarray(k, np.uint32)) for k in key]
    words.append(words[0] ^ words[1] ^ _PARITY)
    x0 = np.asarray(first, np.uint32) + words[0]
    x1 = np.asarray(second, np.uint32) + words[1]
    for index in range(20):
        turn = _ROTATIONS[index % 8]
        x0 = x0 + x1
        x1 = ((x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))) ^ x0
        if index % 4 == 3:
            count = index // 4 + 1
            x0 = x0 + words[count % 3]
            x1 = x1 + words[(count + 1) % 3] + np.uint32(count)
    return x0, x1


def _halves(numbers: Any) -> tuple[Array, Array]:
    """Returns the lower and upper 32 bits of 64-bit numbers."""
    bits = np.atleast_1d(np.asarray(numbers)).astype(np.uint64)
    return bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)


def positions(op: DrawingOp, shape: tuple[int, ...], coordinates: Any) -> Array:
    """
    Returns the indices, in the flattened whole tensor, of the elements of one device's
    part. The part has the shape `shape`; `coordinates` holds the index of the part
    along each split of the tensor.
    """
    indices = [np.arange(size, dtype=np.int64) for size in shape]
    for split, place in reversed(list(zip(op.parts, coordinates, strict=True))):
        block, inside = np.divmod(indices[split.dim], split.run)
        block = block * split.parts + int(place)
        indices[split.dim] = block * split.run + inside
    found = np.zeros((), np.int64)
    for index, size in zip(indices, op.whole_shape, strict=True):
        found = found[..., None] * size + index
    return found


def kept(op: DrawingOp, shape: tuple[int, ...], counter: Any, places: Any) -> Array:
    """
    Returns, for each element of a tensor or of one device's part of it, whether dropout
    keeps the element. `counter` selects the random numbers. `places` holds the index of
    the part along each split of the tensor.
    """
    key = threefry(
        (op.seed.value.data, op.stream.value.data), *_halves(np.int64(counter))
    )
    where = positions(op, shape, places).reshape(-1)
    word, _ = threefry(key, *_halves(where))
    return (word >= op.threshold).reshape(shape)


@computes(DropoutOp)
def dropout(
    op: DropoutOp, x: Array, counter: Array, *places: Array
) -> Array | tuple[Array, ...]:
    keep = kept(op, x.shape, counter, places)
    y = np.where(keep, x * op.kept_factor, 0)
    return y if op.mask is None else (y, keep)


_FORWARD_PASSES, _GRADIENT_PASSES = 6, 11
"""
The number of times that attention with dropout moves its scores through memory. The
forward writes and reads the results of the product, of the softmax and of the dropout
once each. The gradient computes the probabilities again, and reads the gradients of
scores for two products.
"""


def _read(
    op: DroppedAttentionBase, *operands: Array
) -> tuple[tuple[Array, ...], Attended, Array]:
    """
    Returns the inputs of attention (queries, keys, values and a mask, if any), its
    scores, and the factor of each probability. The factor is 0 if dropout drops the
    probability.
    """
    inputs = operands[: 3 if op.mask is None else 4]
    counter, *places = operands[len(inputs) :]
    scale = inputs[0].dtype.type(op.kept_factor)
    keep = kept(op, op.drawn_shape, counter, places)
    return inputs, attended(op, *inputs), np.where(keep, scale, 0)


@computes(DroppedAttentionOp)
def dropped_attention(op: DroppedAttentionOp, *operands: Array) -> tuple[Array, ...]:
    inputs, found, factors = _read(op, *operands)
    sums = logsumexp_of(found.shown)
    return attention_results(op, found, sums, inputs[0], factors)


@computes(DroppedAttentionGradOp)
def dropped_attention_gradient(
    op: DroppedAttentionGradOp, dy: Array, y: Array, logsumexp: Array, *operands: Array
) -> tuple[Array, ...]:
    inputs, found, factors = _read(op, *operands)
    return attention_gradients(op, dy, y, logsumexp, inputs, found, factors)


@cost_function("train.dropped_attention", "train.dropped_attention_grad")
def written_out(context: CostContext) -> Cost:
    """
    Returns the cost of attention with dropout. No attention kernel of PyTorch draws the
    random numbers of `train.dropped_attention`, so the scores pass through memory. The
    workspace holds the scores of one sample.
    """
    op = context.op
    assert isinstance(op, DroppedAttentionBase)
    is_gradient = isinstance(op, DroppedAttentionGradOp)
    rows = context.operand_bytes[2] if is_gradient else context.result_bytes[1]
    passes = _GRADIENT_PASSES if is_gradient else _FORWARD_PASSES
    scores = rows * op.sizes.keys
    cost = context.roofline(moved=context.bytes + passes * scores)
    parts = context.work.parts
    samples = op.sizes.batch
    for factor in context.work.rule.operands[0][0]:
        samples //= parts.get(factor, 1)
    return replace(cost, workspace=2 * scores // max(samples, 1))
