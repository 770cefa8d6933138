"""
The training form and the gradient rule of fused attention, and the rule of rotary
embeddings.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.activation import SoftmaxGradOp
from distir.dialects.train_ops.attention import AttentionGradOp, AttentionOp
from distir.dialects.train_ops.dropout import DropoutOp, DroppedAttentionGradOp
from distir.dialects.train_ops.indexing import GatherGradOp
from distir.errors import DistIRError
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    onnx_gradient,
    shape,
    training_form,
)
from distir.gradients.rules.arithmetic import is_wanted
from distir.program import describe


def _other_form(op: OnnxOp) -> str | None:
    """
    Returns, in words for users, the feature of an attention op that `train.attention`
    lacks. Returns None if `train.attention` supports the op.
    """
    names = {4: "a past", 5: "a past", 6: "lengths of keys without padding"}
    for i, name in names.items():
        if op.input(i) is not None:
            return name
    if max(op.attribute(f"{side}_window_size") for side in ("left", "right")) >= 0:
        return "a window"
    if any(result.first_use is not None for result in op.results[1:]):
        return "more than its first result used"
    if len({element_type(operand) for operand in op.operands[:3]}) > 1:
        return "values of another type than queries"
    mask = op.input(3)
    if mask is not None and shape(mask)[-1:] != shape(op.operands[1])[-2:-1]:
        return "a mask for fewer keys than there are"
    return None


@training_form("onnx.Attention")
def kept_attention(op: OnnxOp) -> AttentionOp | None:
    """
    Returns the training form of an attention op, which also returns the logarithm of
    each query's sum of exponentials. Returns None if the training form lacks a feature
    of the op.
    """
    if _other_form(op) is not None:
        return None
    packed = len(shape(op.operands[0])) == 3
    q, k, v = op.operands[:3]
    return AttentionOp(
        *(q, k, v, op.input(3)),
        is_causal=bool(op.attribute("is_causal")),
        scale=op.attribute("scale"),
        softcap=op.attribute("softcap") or None,
        q_num_heads=op.attribute("q_num_heads") if packed else None,
        kv_num_heads=op.attribute("kv_num_heads") if packed else None,
    )


@gradient_rule("onnx.Attention")
def other_attention(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Raises DistIRError, because attention without a training form has no gradient
    either.
    """
    raise DistIRError(
        f"{describe(op)} has no gradient rule for attention with {_other_form(op)}; export "
        f"the model without it, or with attention written out"
    )


@gradient_rule("train.attention")
def attention(
    op: AttentionOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of `train.attention`. The gradients are computed from the op's
    operands and results.
    """
    dy = gradients[0]
    assert dy is not None
    fused = AttentionGradOp(
        *(dy, op.y, op.logsumexp, op.q, op.k, op.v, op.mask), **op.properties
    )
    found: list[SSAValue | None] = list(build.add(fused).results)
    if op.mask is not None:
        found.append(mask_gradient(fused, build) if is_wanted(op.mask) else None)
    return found


def mask_gradient(
    fused: AttentionGradOp | DroppedAttentionGradOp, build: GradientBuilder
) -> SSAValue:
    """
    Returns the gradient of a mask that is added to scores, computed by elementary ops.
    A later pass removes these ops if the gradient is unused. The ops divide the
    dimension of query heads into [key heads, group].
    """
    sizes = fused.sizes
    key_heads, group = sizes.key_heads, sizes.query_heads // sizes.key_heads
    mask = fused.mask
    assert mask is not None

    def by_head(x: SSAValue, queries: bool) -> SSAValue:
        heads = sizes.query_heads if queries else key_heads
        if fused.is_packed:
            batch, length, width = shape(x)
            split = build.integers((batch, length, heads, width // heads))
            x = build.onnx("Reshape", x, split)
            x = build.onnx("Transpose", x, perm=[0, 2, 1, 3])
        batch, _, length, size = shape(x)
        parts = (batch, key_heads, group if queries else 1, length, size)
        return build.onnx("Reshape", x, build.integers(parts))

    def product(a: SSAValue, b: SSAValue) -> SSAValue:
        turned = build.onnx("Transpose", by_head(b, False), perm=[0, 1, 2, 4, 3])
        whole = build.onnx("MatMul", by_head(a, True), turned)
        return build.onnx("Reshape", whole, build.integers(sizes.scores))

    scores = product(fused.q, fused.k)
    scores = build.onnx("Mul", scores, build.scalar(fused.factor, scores))
    if fused.cap is not None:
        cap = build.scalar(fused.cap, scores)
        scores = build.onnx(
            "Mul", build.onnx("Tanh", build.onnx("Div", scores, cap)), cap
        )
    scores = build.onnx("Add", scores, mask)
    if fused.is_causal is not None:
        dtype = numpy_dtype(element_type(mask))
        seen = np.tri(sizes.queries, sizes.keys, dtype=bool)
        hidden = np.where(seen, 0.0, -np.inf).astype(dtype)
        scores = build.onnx("Add", scores, build.constant(hidden))
    weights = build.onnx("Softmax", scores, axis=-1)
    of_weights = product(fused.dy, fused.v)
    if isinstance(fused, DroppedAttentionGradOp):
        kept = DropoutOp(of_weights, fused.counter, fused.coordinates, **fused.drawing)
        of_weights = build.result(kept)
    gradient = build.result(SoftmaxGradOp(of_weights, weights, axis=-1))
    return build.sum_to(gradient, mask)


@onnx_gradient("RotaryEmbedding")
def rotary_embedding(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of RotaryEmbedding, which rotates pairs of features by an angle. The
    gradient of the input is dy rotated back; computing it needs only the cosines and
    sines. The gradients of the cosines and sines also need the input.
    """
    x, cos, sin = op.operands[:3]
    positions = op.input(3)
    attributes = {
        name: op.attribute(name)
        for name in ("interleaved", "num_heads", "rotary_embedding_dim")
    }
    back = build.onnx("Neg", sin)
    turned = operator("RotaryEmbedding").build_op(
        [dy, cos, back, positions], [x.type], attributes
    )
    dx = build.result(turned)
    first, second = _pairs(op, x, build)
    dfirst, dsecond = _pairs(op, dy, build)

    def product(*factors: SSAValue) -> SSAValue:
        return build.onnx("Mul", *factors)

    dcos = build.onnx("Add", product(dfirst, first), product(dsecond, second))
    dsin = build.onnx("Sub", product(dsecond, first), product(dfirst, second))
    heads = build.integers([2 if len(shape(x)) == 3 else 1])
    found: list[SSAValue | None] = [dx]
    for gradient, table in ((dcos, cos), (dsin, sin)):
        gradient = build.onnx("ReduceSum", gradient, heads, keepdims=0)
        if positions is not None:
            grad = GatherGradOp(gradient, positions, table, axis=0, ddata=table.type)
            gradient = build.result(grad)
        found.append(gradient)
    return found


def _pairs(
    op: OnnxOp, value: SSAValue, build: GradientBuilder
) -> tuple[SSAValue, SSAValue]:
    """
    Returns the first features of all rotated pairs, and the second features. In both
    results, heads are a separate dimension.
    """
    sizes = shape(value)
    if len(sizes) == 3:
        heads = op.attribute("num_heads")
        sizes = (*sizes[:2], heads, sizes[2] // heads)
        value = build.onnx("Reshape", value, build.integers(sizes))
    turned = op.attribute("rotary_embedding_dim") or sizes[3]
    if op.attribute("interleaved"):
        parts = ((0, turned, 2), (1, turned, 2))
    else:
        parts = ((0, turned // 2, 1), (turned // 2, turned, 1))
    last = build.integers([3])
    first, second = (
        build.onnx(
            "Slice",
            value,
            build.integers([start]),
            build.integers([end]),
            last,
            build.integers([step]),
        )
        for start, end, step in parts
    )
    return first, second
