"""Emitters of contractions."""
from distir.lowering.emitter import Call, torch_emitter

@torch_emitter("onnx.MatMul")
def matmul(call: Call) -> str:
    return f"{call.operand(0)} @ {call.operand(1)}"
