"""Emitters of dropout and of its gradient."""

from __future__ import annotations

from distir.dialects.train_ops.dropout import DropoutGradOp, DropoutOp
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
        f"scale={op.kept_factor!r}",
    ]
    if op.parts:
        splits = [tuple(split) for split in op.parts]
        arguments += [f"shape={op.whole_shape!r}", f"splits={splits!r}"]
    function = "dropout" if op.mask is None else "dropout_and_mask"
    given = ", ".join(arguments)
    return call.write(f"{function}({{given}})", "dropout", given=given)


@torch_emitter("train.dropout_grad")
def dropout_gradient(call: Call) -> str:
    assert isinstance(call.op, DropoutGradOp)
    scale = repr(call.op.scale)
    return call.write("torch.where({1}, {0} * {scale}, 0)", scale=scale)
