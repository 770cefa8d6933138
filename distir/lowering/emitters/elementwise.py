"""Emitters of elementwise ops."""
from distir.lowering.emitter import Call, torch_emitter

@torch_emitter("onnx.Add")
def add(call: Call) -> str:
    return f"{call.scalar(0)} + {call.scalar(1)}"

@torch_emitter("onnx.Relu")
def relu(call: Call) -> str:
    return f"F.relu({call.operand(0)})"
