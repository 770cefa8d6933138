"""
Mixed precision as PyTorch's `autocast` has it on GPUs: which operators compute in 16 bits
and which in 32, whatever their operands are.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, f32

from distir.dialects.onnx import OnnxOp
from distir.transforms.precision.retyping import Float, Retyping

_NARROW = """
    Attention Conv ConvTranspose Einsum GRU Gemm LSTM MatMul PRelu RNN
"""
"""Operators that stand for functions of PyTorch's list of those that run in 16 bits."""

_WIDE = """
    Acos Asin Cosh CumProd CumSum Exp GroupNormalization LayerNormalization Log LogSoftmax
    LpNormalization NegativeLogLikelihoodLoss Pow RMSNormalization Reciprocal ReduceL1
    ReduceL2 ReduceLogSum ReduceLogSumExp ReduceProd ReduceSum ReduceSumSquare Resize Sinh
    SoftmaxCrossEntropyLoss Softmax Softplus Tan
"""
"""Those that stand for functions of its list of those that run in 32 bits."""

_NARROW_OPS = frozenset(f"onnx.{name}" for name in _NARROW.split())
_WIDE_OPS = frozenset(f"onnx.{name}" for name in _WIDE.split())


def autocast(module: ModuleOp, element: Float) -> None:
    """
    Casts operands in a sequential program, in place, as PyTorch does under
    `torch.autocast("cuda", dtype)`: matrix products, convolutions and attention compute in
    that type, norms, softmax, powers, sums and losses in f32, everything else in the widest
    type of its operands. Parameters stay as they are, and each is cast once a step.
    What follows from constants alone stays as it is, as where models switch autocast off for their rotary
    tables. Raises DistIRError for a program with calls.
    """

    def wanted(op: OnnxOp) -> Float | None:
        if op.name in _NARROW_OPS:
            return element
        return f32 if op.name in _WIDE_OPS else None

    Retyping(module, promoting=True).run(wanted)
