"""Emitters of recurrent layers and their gradients."""

from __future__ import annotations

from distir.dialects.onnx_ops.traits import RECURRENT
from distir.dialects.train_ops.recurrent import (
    GatheredGradOp,
    GatheredGruGradOp,
    GatheredGruOp,
    GatheredLayerOp,
    GatheredOp,
)
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter(*RECURRENT)
def recurrent(call: Call) -> str:
    kind = call.op.name.removeprefix("onnx.")
    if kind == "LSTM" and call.attribute("input_forget"):
        raise call.fail("coupled input and forget gates")
    for name in ("clip", "activation_alpha", "activation_beta"):
        if call.attribute(name) is not None:
            raise call.fail(f"attribute {name}")
    direction = call.attribute("direction")
    wanted = RECURRENT[call.op.name] * (2 if direction == "bidirectional" else 1)
    given = tuple(call.attribute("activations") or wanted)
    # The schema's default for one direction has an entry for a second one.
    if any(g.lower() != w for g, w in zip(given, wanted, strict=False)) or len(
        given
    ) < len(wanted):
        raise call.fail(f"activations {', '.join(given)}")
    values = ", ".join(call.operand(i) for i in range(8 if kind == "LSTM" else 6))
    template = "({values}, direction={direction}, batch_first={layout:flag}"
    if kind == "GRU":
        template += ", linear_before_reset={linear_before_reset:flag}"
    written = call.write(f"{kind.lower()}{template})", "recurrent", values=values)
    return call.first(written)


@torch_emitter("train.gathered_rnn", "train.gathered_gru", "train.gathered_lstm")
def gathered_layer(call: Call) -> str:
    op = call.op
    assert isinstance(op, GatheredLayerOp)
    bias, start = [], list(op.start) or [None] * op.STATES
    for value in (op.b, *start):
        bias.append("None" if value is None else call.names.name(value))
    given = [*(call.operand(i) for i in range(3)), *bias]
    if op.axes is None:  # PyTorch's kernel: without lengths and without peepholes
        given.insert(4, "None")
        given += ["None"] * (op.name == "train.gathered_lstm")
    return call.first(_written(call, op, given))


@torch_emitter(
    "train.gathered_rnn_grad", "train.gathered_gru_grad", "train.gathered_lstm_grad"
)
def gathered_gradient(call: Call) -> str:
    assert isinstance(call.op, GatheredGradOp)
    return _written(call, call.op, call.operands())


def _written(call: Call, op: GatheredOp, given: list[str]) -> str:
    """
    Returns a call of the function that computes a recurrent layer: on one process, or,
    if the op has mesh axes, on a group of processes.
    """
    module, first = "recurrent", list[str]()
    if op.axes is not None:
        module = "gathered_recurrent"
        run = None if op.run is None else op.run.value.data
        first = [call.names.group(op), repr(run)]
    how = [f"direction={call.attribute('direction')!r}"]
    how.append(f"batch_first={op.batch_first is not None}")
    if isinstance(op, GatheredGruOp | GatheredGruGradOp):
        how.append(f"linear_before_reset={op.linear_before_reset is not None}")
    function = op.name.removeprefix("train.gathered_")
    written = ", ".join([*first, *given, *how])
    return f"{call.helper(module)}.{function}({written})"
