"""Emitters of the optimizer steps in ONNX's preview training domain."""

from __future__ import annotations

from distir.lowering.emitter import Call, torch_emitter

_OPTIMIZERS: dict[str, tuple[int, str]] = {
    "Momentum": (3, "alpha beta mode norm_coefficient"),
    "Adagrad": (3, "decay_factor epsilon norm_coefficient"),
    "Adam": (4, "alpha beta epsilon norm_coefficient norm_coefficient_post"),
}
"""
For each optimizer, the number of tensors per parameter (the parameter, its gradient and
its states), and the names of the attributes.
"""


@torch_emitter(*(f"onnx.training.{name}" for name in _OPTIMIZERS))
def optimizer(call: Call) -> str:
    name = call.op.name.removeprefix("onnx.training.")
    states, attributes = _OPTIMIZERS[name]
    values = call.operands()[2:]
    count = len(values) // states
    groups = [f"({', '.join(values[i::count])})" for i in range(count)]
    given = ", ".join(
        f"{attribute}={{{attribute}}}" for attribute in attributes.split()
    )
    template = f"{name.lower()}({{0}}, {{1}}, [{{groups}}], {given})"
    return call.write(template, "onnx_optimizers", groups=", ".join(groups))
