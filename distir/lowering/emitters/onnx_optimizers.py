"""Emitters of ONNX's optimizer steps (preview training domain)."""

from __future__ import annotations

from collections.abc import Callable

from distir.lowering.emitter import Call, torch_emitter


def _optimizer(
    function: str, states: int, options: tuple[str, ...]
) -> Callable[[Call], str]:
    """`states`: tensors per parameter, the parameter and its gradient among them."""

    def emit(call: Call) -> str:
        values = call.operands()[2:]
        count = len(values) // states
        groups = [f"({', '.join(values[i::count])})" for i in range(count)]
        given = ", ".join(f"{name}={{{name}}}" for name in options)
        template = f"{function}({{0}}, {{1}}, [{{groups}}], {given})"
        return call.write(template, "onnx_optimizers", groups=", ".join(groups))

    return emit


torch_emitter("onnx.training.Momentum")(
    _optimizer("momentum", 3, ("alpha", "beta", "mode", "norm_coefficient"))
)
torch_emitter("onnx.training.Adagrad")(
    _optimizer("adagrad", 3, ("decay_factor", "epsilon", "norm_coefficient"))
)
torch_emitter("onnx.training.Adam")(
    _optimizer(
        *("adam", 4),
        ("alpha", "beta", "epsilon", "norm_coefficient", "norm_coefficient_post"),
    )
)
