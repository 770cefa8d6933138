"""Emitter of dropout."""

from __future__ import annotations

from distir.dialects.train_ops.dropout import DropoutOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.dropout")
def dropout(call: Call) -> str:
    op = call.op
    assert isinstance(op, DropoutOp)
    call.helper("random_numbers")
    arguments = [
        *call.operands(),
        f"key={(op.seed.value.data, op.stream.value.data)!r}",
        f"threshold={op.threshold!r}",
        f"scale={op.scale!r}",
    ]
    if op.parts:
        splits = [(s.dim, s.parts, s.run) for s in op.parts]
        arguments += [f"shape={op.whole_shape!r}", f"splits={splits!r}"]
    return f"{call.helper('dropout')}.dropout({', '.join(arguments)})"
