"""Emitters of optimizers."""

from __future__ import annotations

from distir.dialects.train_ops.optimizers import SgdOp, UpdateOp
from distir.lowering.emitter import Call, torch_emitter, torch_templates


@torch_emitter("train.sgd", "train.adam", "train.adamw")
def update(call: Call) -> str:
    op = call.op
    assert isinstance(op, UpdateOp)
    arguments = call.operands()
    arguments += [f"{name}={value!r}" for name, value in sorted(op.settings.items())]
    if isinstance(op, SgdOp):
        if op.nesterov is not None:
            arguments.append("nesterov=True")
        function = "sgd" if op.buffer is None else "sgd_momentum"
    else:
        function = op.name.removeprefix("train.")
    return call.write(
        f"{function}({{given}})", "optimizers", given=", ".join(arguments)
    )


torch_templates({"square_sum": "{0}.to({result:dtype}).square().sum()"}, "train")
