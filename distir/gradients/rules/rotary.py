"""The gradient rule of rotary position embedding."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.indexing import GatherGradOp
from distir.gradients.rule import GradientBuilder, Gradients, onnx_gradient, shape


@onnx_gradient("RotaryEmbedding")
def rotary_embedding(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Pairs of features are rotated by an angle; their gradients are rotated back, which needs
    cosines and sines only. The gradients of cosines and sines, if these depend on anything,
    need the input.
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
    Returns the first and the second features of all pairs that are rotated; heads are a
    dimension of their own.
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
