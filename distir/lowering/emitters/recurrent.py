"""Emitters of recurrent layers."""

from __future__ import annotations

from collections.abc import Callable

from distir.lowering.emitter import Call, torch_emitter

_DEFAULTS = {
    "rnn": ("Tanh",),
    "gru": ("Sigmoid", "Tanh"),
    "lstm": ("Sigmoid", "Tanh", "Tanh"),
}


def _recurrent(kind: str, operands: int) -> Callable[[Call], str]:
    def emit(call: Call) -> str:
        if kind == "lstm" and call.attribute("input_forget"):
            raise call.fail("coupled input and forget gates")
        for name in ("clip", "activation_alpha", "activation_beta"):
            if call.attribute(name) is not None:
                raise call.fail(f"attribute {name}")
        direction = call.attribute("direction")
        wanted = _DEFAULTS[kind] * (2 if direction == "bidirectional" else 1)
        given = tuple(call.attribute("activations") or wanted)
        # The schema's default for one direction has an entry for a second one.
        if any(
            g.lower() != w.lower() for g, w in zip(given, wanted, strict=False)
        ) or len(given) < len(wanted):
            raise call.fail(f"activations {', '.join(given)}")
        values = ", ".join(call.operand(i) for i in range(operands))
        template = "({values}, direction={direction}, batch_first={layout:flag}"
        if kind == "gru":
            template += ", linear_before_reset={linear_before_reset:flag}"
        return call.first(call.write(f"{kind}{template})", "recurrent", values=values))

    return emit


torch_emitter("onnx.RNN")(_recurrent("rnn", 6))
torch_emitter("onnx.GRU")(_recurrent("gru", 6))
torch_emitter("onnx.LSTM")(_recurrent("lstm", 8))
