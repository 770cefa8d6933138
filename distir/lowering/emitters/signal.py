"""Emitters of Fourier transforms and of the windows used with them."""

from __future__ import annotations

from distir.lowering.emitter import Call, torch_emitter, torch_templates


@torch_emitter("onnx.DFT")
def dft(call: Call) -> str:
    return call.write(
        "dft({0}, {1:integer}, {axis}, inverse={inverse:flag}, onesided={onesided:flag})",
        "signals",
        axis=call.integer(2) if call.has(2) else "-2",
    )


def _window(function: str) -> str:
    return f"torch.{function}, dtype=torch.float64).to({{result:dtype}})"


torch_templates(
    {
        "HannWindow": _window("hann_window({0:integer}, {periodic:flag}"),
        "HammingWindow":  # ONNX has 25/46 where others round to 0.54.
        _window("hamming_window({0:integer}, {periodic:flag}, 25 / 46, 21 / 46"),
        "BlackmanWindow": _window("blackman_window({0:integer}, {periodic:flag}"),
    }
)
torch_templates(
    {
        "STFT": "stft({0}, {1:integer}, {2}, {3:integer}, onesided={onesided:flag})",
        "MelWeightMatrix": "mel_weights({0:integer}, {1:integer}, {2:integer}, {3:number}, {4:number}).to({result:dtype})",
    },
    module="signals",
)
