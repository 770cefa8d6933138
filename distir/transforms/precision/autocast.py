"""
Mixed precision as PyTorch's `autocast` does it on GPUs: some operators compute in 16 bits
and some in 32, whatever the types of their operands.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, TensorType, f32, f64
from xdsl.ir import BlockArgument

from distir.dialects.onnx import OnnxOp
from distir.dialects.onnx_ops.traits import FULL_PRECISION, LOW_PRECISION
from distir.transforms.precision.retyping import Float, Retyping, float_of


def autocast(module: ModuleOp, element: Float) -> None:
    """
    Casts operands in a sequential program, in place, as PyTorch does under
    `torch.autocast("cuda", dtype)`: matrix products, convolutions and attention compute in
    that type, norms, softmax, powers, sums and losses in f32, everything else in the widest
    type of its operands. A parameter of one dimension that is added to a matrix product is
    the bias of a linear layer, and is added in 16 bits. Parameters stay as they are, and
    each is cast once a step. What follows from constants alone stays as it is, as where
    models switch autocast off for their rotary tables, and so does an op with an operand in
    f64. Raises DistIRError for a program with calls.
    """

    def wanted(op: OnnxOp) -> Float | None:
        if any(float_of(operand) == f64 for operand in op.operands):
            return None
        if op.name in LOW_PRECISION or _adds_bias(op):
            return element
        return f32 if op.name in FULL_PRECISION else None

    Retyping(module, promoting=True).run(wanted)


def _adds_bias(op: OnnxOp) -> bool:
    """Returns whether an op is the second half of a linear layer, a product and its bias."""
    if op.name != "onnx.Add":
        return False
    product, bias = sorted(op.operands, key=lambda v: isinstance(v, BlockArgument))
    return (
        isinstance(product.owner, OnnxOp)
        and product.owner.name == "onnx.MatMul"
        and isinstance(bias, BlockArgument)
        and isinstance(bias.type, TensorType)
        and bias.type.get_num_dims() == 1
    )
