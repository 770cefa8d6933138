"""Emitters of contractions: matrix products, einsum, quantised products."""

from __future__ import annotations

from distir.lowering.emitter import NARROW, Call, torch_emitter


@torch_emitter("onnx.MatMul")
def matmul(call: Call) -> str:
    if "INT" in call.element(0):
        return (
            f"{call.helper('quantization')}.integer_matmul({call.operand(0)}, "
            f"{call.operand(1)}).to({call.result_dtype()})"
        )
    return f"{call.operand(0)} @ {call.operand(1)}"


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
    equation = call.attribute("equation").replace(" ", "")
    return f"torch.einsum({equation!r}, {', '.join(call.operands())})"


@torch_emitter("onnx.Det")
def det(call: Call) -> str:
    return f"torch.linalg.det({call.operand(0)})"


def _quantization(call: Call, function: str, extra: str = "") -> str:
    operands = ", ".join(call.operands())
    return f"{call.helper('quantization')}.{function}({operands}{extra})"


@torch_emitter("onnx.MatMulInteger")
def matmul_integer(call: Call) -> str:
    return _quantization(call, "matmul_integer")


@torch_emitter("onnx.QLinearMatMul")
def q_linear_matmul(call: Call) -> str:
    return _quantization(call, "q_linear_matmul")


@torch_emitter("onnx.QuantizeLinear")
def quantize_linear(call: Call) -> str:
    extra = ""
    if call.result_element() in NARROW:
        extra += f", limits={NARROW[call.result_element()]!r}"
    if call.attribute("precision"):
        extra += f", precision={call.dtype(call.attribute('precision'))}"
    if not call.attribute("saturate"):
        extra += ", saturate=False"
    return _quantization(
        call,
        "quantize",
        f", {'None, ' * (3 - call.count)}{call.result_dtype()}, "
        f"axis={call.attribute('axis')}, block={call.attribute('block_size')}{extra}",
    )


@torch_emitter("onnx.DequantizeLinear")
def dequantize_linear(call: Call) -> str:
    return _quantization(
        call,
        "dequantize",
        f", {'None, ' * (3 - call.count)}{call.result_dtype()}, axis={call.attribute('axis')}, "
        f"block={call.attribute('block_size')}",
    )


@torch_emitter("onnx.DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call) -> str:
    return _quantization(call, "dynamic_quantize")
