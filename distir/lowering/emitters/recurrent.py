"""Emitter of recurrent layers."""

from __future__ import annotations

from distir.lowering.emitter import Call, torch_emitter

_DEFAULTS = {
    "RNN": ("Tanh",),
    "GRU": ("Sigmoid", "Tanh"),
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
}


@torch_emitter("onnx.RNN", "onnx.GRU", "onnx.LSTM")
def recurrent(call: Call) -> str:
    kind = call.op.name.removeprefix("onnx.")
    if kind == "LSTM" and call.attribute("input_forget"):
        raise call.fail("coupled input and forget gates")
    for name in ("clip", "activation_alpha", "activation_beta"):
        if call.attribute(name) is not None:
            raise call.fail(f"attribute {name}")
    direction = call.attribute("direction")
    wanted = _DEFAULTS[kind] * (2 if direction == "bidirectional" else 1)
    given = tuple(call.attribute("activations") or wanted)
    # The schema's default for one direction has an entry for a second one.
    if any(g.lower() != w.lower() for g, w in zip(given, wanted, strict=False)) or len(
        given
    ) < len(wanted):
        raise call.fail(f"activations {', '.join(given)}")
    values = ", ".join(call.operand(i) for i in range(8 if kind == "LSTM" else 6))
    template = "({values}, direction={direction}, batch_first={layout:flag}"
    if kind == "GRU":
        template += ", linear_before_reset={linear_before_reset:flag}"
    written = call.write(f"{kind.lower()}{template})", "recurrent", values=values)
    return call.first(written)
