"""Gradient rule of fused attention."""

from __future__ import annotations

from math import sqrt

import numpy as np
from xdsl.ir import SSAValue

from distir.dialects.onnx import OnnxOp
from distir.dialects.onnx_values import numpy_dtype
from distir.dialects.train_ops.attention import AttentionGradOp
from distir.dialects.train_ops.checks import element_type
from distir.dialects.train_ops.softmax import SoftmaxGradOp
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule, shape
from distir.gradients.rules.arithmetic import is_wanted
from distir.program import describe


def _refuse_other_forms(op: OnnxOp, gradients: Gradients) -> None:
    """Raises DistIRError for what the fused gradient does not do."""
    names = {4: "a past", 5: "a past", 6: "lengths of keys without padding"}
    what = [name for i, name in names.items() if op.input(i) is not None]
    if any(g is not None for g in gradients[1:]):
        what.append("gradients of more than its first result")
    if op.attribute("softcap"):
        what.append("a soft cap")
    if max(op.attribute(f"{side}_window_size") for side in ("left", "right")) >= 0:
        what.append("a window")
    mask = op.input(3)
    if mask is not None and shape(mask)[-1:] != shape(op.operands[1])[-2:-1]:
        what.append("a mask for fewer keys than there are")
    if what:
        raise DistIRError(
            f"{describe(op)} has no gradient rule for attention with {what[0]}; export "
            f"the model without it, or with attention written out"
        )


@gradient_rule("onnx.Attention")
def attention(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """Needs the inputs: the weights of the keys are computed again."""
    _refuse_other_forms(op, gradients)
    dy = gradients[0]
    assert dy is not None
    q, k, v = op.operands[:3]
    mask = op.input(3)
    packed = len(shape(q)) == 3
    fused = AttentionGradOp(
        *(dy, q, k, v, mask),
        is_causal=bool(op.attribute("is_causal")),
        scale=op.attribute("scale"),
        q_num_heads=op.attribute("q_num_heads") if packed else None,
        kv_num_heads=op.attribute("kv_num_heads") if packed else None,
    )
    found: list[SSAValue | None] = list(build.add(fused).results)
    if mask is not None:
        wanted = is_wanted(mask)
        found.append(_mask_gradient(fused, build) if wanted else None)
    return found


def _mask_gradient(fused: AttentionGradOp, build: GradientBuilder) -> SSAValue:
    """
    The gradient of a mask that is added, written out; nothing is left of it where it is
    not used. Query heads are `[key heads, group]` here.
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

    scale = sqrt(1 / sizes.head) if fused.scale is None else fused.scale.value.data
    scores = product(fused.q, fused.k)
    scores = build.onnx("Mul", scores, build.scalar(scale, scores))
    scores = build.onnx("Add", scores, mask)
    if fused.is_causal is not None:
        dtype = numpy_dtype(element_type(mask))
        seen = np.tri(sizes.queries, sizes.keys, dtype=bool)
        hidden = np.where(seen, 0.0, -np.inf).astype(dtype)
        scores = build.onnx("Add", scores, build.constant(hidden))
    weights = build.onnx("Softmax", scores, axis=-1)
    of_weights = product(fused.dy, fused.v)
    gradient = build.result(SoftmaxGradOp(of_weights, weights, axis=-1))
    return build.sum_to(gradient, mask)
