"""Emitters of Fourier transforms and of the windows used with them."""

from __future__ import annotations

from collections.abc import Callable

from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("onnx.DFT")
def dft(call: Call) -> str:
    length = call.integer(1) if call.has(1) else "None"
    axis = call.integer(2) if call.has(2) else "-2"
    return (
        f"{call.helper('signals')}.dft({call.operand(0)}, {length}, {axis}, "
        f"inverse={bool(call.attribute('inverse'))}, "
        f"onesided={bool(call.attribute('onesided'))})"
    )


@torch_emitter("onnx.STFT")
def stft(call: Call) -> str:
    length = call.integer(3) if call.has(3) else "None"
    return (
        f"{call.helper('signals')}.stft({call.operand(0)}, {call.integer(1)}, "
        f"{call.operand(2)}, {length}, onesided={bool(call.attribute('onesided'))})"
    )


def _window(function: str) -> Callable[[Call], str]:
    def emit(call: Call) -> str:
        periodic = bool(call.attribute("periodic"))
        dtype = call.result_dtype()
        return f"{function.format(n=call.integer(0), periodic=periodic)}.to({dtype})"

    return emit


torch_emitter("onnx.HannWindow")(
    _window("torch.hann_window({n}, {periodic}, dtype=torch.float64)")
)
torch_emitter("onnx.HammingWindow")(
    # ONNX has 25/46 where others round to 0.54.
    _window(
        "torch.hamming_window({n}, {periodic}, 25 / 46, 21 / 46, dtype=torch.float64)"
    )
)
torch_emitter("onnx.BlackmanWindow")(
    _window("torch.blackman_window({n}, {periodic}, dtype=torch.float64)")
)


@torch_emitter("onnx.MelWeightMatrix")
def mel_weights(call: Call) -> str:
    bins, length, rate = (call.integer(i) for i in range(3))
    low, high = call.number(3), call.number(4)
    return (
        f"{call.helper('signals')}.mel_weights({bins}, {length}, {rate}, {low}, {high})"
        f".to({call.result_dtype()})"
    )
