"""Emitters of contractions: matrix products, einsum and quantised products."""

from __future__ import annotations

from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.train_ops.float8 import FORMATS, Float8LinearOp
from distir.lowering.emitter import NARROW, Call, torch_emitter


@torch_emitter("onnx.MatMul")
def matmul(call: Call) -> str:
    if "INT" in call.element(0):
        template = "integer_matmul({0}, {1}).to({result:dtype})"
        return call.write(template, "quantization")
    return call.write("{0} @ {1}")


@torch_emitter("onnx.Gemm")
def gemm(call: Call) -> str:
    alpha, beta = call.attribute("alpha"), call.attribute("beta")
    a, b = call.operand(0), call.operand(1)
    if "INT" in call.element(0):
        raise call.fail("Gemm of integers")
    left = f"{a}.t()" if call.attribute("transA") else a
    if alpha == 1.0 and (not call.has(2) or (beta == 1.0 and call.rank(2) == 1)):
        weight = b if call.attribute("transB") else f"{b}.t()"
        bias = f", {call.operand(2)}" if call.has(2) else ""
        return f"F.linear({left}, {weight}{bias})"
    right = f"{b}.t()" if call.attribute("transB") else b
    if not call.has(2):
        return f"{alpha!r} * ({left} @ {right})"
    scale = "" if alpha == 1.0 else f", alpha={alpha!r}"
    if beta != 1.0:
        scale += f", beta={beta!r}"
    return f"torch.addmm({call.operand(2)}, {left}, {right}{scale})"


@torch_emitter("onnx.Einsum")
def einsum(call: Call) -> str:
    equation = _summed_in_order(call.attribute("equation").replace(" ", ""))
    written = call.write("torch.einsum({equation}, {*})", equation=repr(equation))
    if "INT" in call.element(0):  # sums of integers come in 64 bits
        return f"{written}.to({call.result_dtype()})"
    return written


def _summed_in_order(equation: str) -> str:
    """
    Returns an einsum equation whose summed letters are renamed so that they occur in
    alphabetical order. PyTorch sums over dimensions in alphabetical order, and copies
    operands whose dimensions have another order.
    """
    terms, arrow, result = equation.partition("->")
    if not arrow:
        return equation
    summed = [c for c in dict.fromkeys(terms) if c.isalpha() and c not in result]
    names = dict(zip(summed, sorted(summed), strict=True))
    return "".join(names.get(c, c) for c in terms) + arrow + result


def _scaled(call: Call, function: str, extra: str = "") -> str:
    """
    Returns a call of a quantisation function with the scale and the zero point. A
    missing zero point is passed as `None`.
    """
    template = "({*}, {missing}{result:dtype}, axis={axis}, block={block_size}{extra})"
    missing = "None, " * (3 - call.count)
    return call.write(
        f"{function}{template}", "quantization", missing=missing, extra=extra
    )


@torch_emitter("onnx.QuantizeLinear")
def quantize_linear(call: Call) -> str:
    extra = ""
    if call.result_element() in NARROW:
        extra += f", limits={NARROW[call.result_element()]!r}"
    if call.attribute("precision"):
        extra += f", precision={call.dtype(call.attribute('precision'))}"
    if not call.attribute("saturate"):
        extra += ", saturate=False"
    return _scaled(call, "quantize", extra)


@torch_emitter("onnx.DequantizeLinear")
def dequantize_linear(call: Call) -> str:
    return _scaled(call, "dequantize")


@torch_emitter("train.float8_linear")
def float8_linear(call: Call) -> str:
    op = call.op
    assert isinstance(op, Float8LinearOp)
    types = [call.dtype(onnx_element_type(FORMATS[name][0])) for name in op.formats]
    is_whole = repr(op.scaling.data == "tensor")
    return call.like_op("float8", [*call.operands(), *types, is_whole])
