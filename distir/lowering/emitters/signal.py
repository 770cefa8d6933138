"""Emitter of the Fourier transform."""

from __future__ import annotations

from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("onnx.DFT")
def dft(call: Call) -> str:
    return call.write(
        "dft({0}, {1:integer}, {axis}, inverse={inverse:flag}, onesided={onesided:flag})",
        "signals",
        axis=call.integer(2) if call.has(2) else "-2",
    )
