"""
The gradient rule of products in 8-bit floats. The gradients are products in 8-bit
floats too.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.train_ops.float8 import Float8LinearOp, float8_linear
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule, shape
from distir.gradients.rules.arithmetic import is_wanted


@gradient_rule("train.float8_linear")
def linear(
    op: Float8LinearOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of `train.float8_linear`, y = a b: `da = dy b'` and `db = a' dy`,
    where ' transposes. `dy` is converted to e5m2, which has a larger range than e4m3.
    The gradient treats rounding as the identity. With the scaling `row-gw-hp`, `db` is
    a product in the model's precision.
    """
    dy = gradients[0]
    assert dy is not None

    def product(left: SSAValue, right: SSAValue, left_is_dy: bool) -> SSAValue:
        names = ("e5m2", "e4m3") if left_is_dy else ("e4m3", "e5m2")
        return build.result(float8_linear(left, right, op.scaling.data, *names))

    da = db = None
    # Both products take the same matrix, which is rounded and communicated once.
    right = build.matrix(dy)
    if is_wanted(op.a):
        da = product(right, build.transposed(op.b), True)
        if right is not dy:
            da = build.onnx("Reshape", da, build.integers(shape(op.a)))
    if is_wanted(op.b):
        left = build.matrix(op.a)
        if op.scaling.data == "row-gw-hp":
            db = build.onnx("Gemm", left, right, transA=1)
        else:
            db = product(build.transposed(left), right, False)
    return [da, db]
