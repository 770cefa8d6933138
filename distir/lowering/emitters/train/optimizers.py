"""Emitter of what clipping gradients needs; `fusions.updates` has the updates."""

from __future__ import annotations

from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.square_sum")
def square_sum(call: Call) -> str:
    return f"{call.operand(0)}.to({call.result_dtype()}).square().sum()"
