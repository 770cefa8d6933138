"""Emitters of the `collective` dialect in per-rank form."""

from distir.dialects import collective
from distir.dialects.collective_ops.per_rank import RecvFromRankOp, SendToRankOp
from distir.dialects.collective_ops.rank_form import (
    RANK_OPS,
    InRankForm,
    RootedInRankForm,
)
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.torch import IN_PLACE
from distir.lowering.emitter import (
    Call,
    NoLowering,
    torch_dtype,
    torch_emitter,
    torch_templates,
)

_NUMBERS = (
    *("dim", "run", "split_dim", "split_run", "blocks", "split_blocks"),
    "shift",
)
"""The integer properties that become arguments, in the order of the arguments."""


def _written(call: Call) -> str:
    """
    Returns the text `module.function(x, group, name=value, ...)` with the properties
    that are set. For an asynchronous op the function is `start_function`.
    """
    op = call.op
    assert isinstance(op, InRankForm)
    function = op.TORCH_FUNCTION or op.kind
    if op.is_asynchronous:
        function = f"start_{function}"
    parts = [*call.operands(), call.names.group(op)]
    for name in _NUMBERS:
        number = op.number(name)
        if number is not None:
            parts.append(f"{name}={number}")
    if op.reduction_name is not None:
        parts.append(f"reduction={op.reduction_name!r}")
    if IN_PLACE in op.attributes:
        parts.append("in_place=True")
    if isinstance(op, RootedInRankForm):
        parts.append(f"root={call.names.number(op.root_rank)}")
    return call.write(f"{function}({{given}})", op.TORCH_MODULE, given=", ".join(parts))


def _distributed(call: Call) -> str:
    raise NoLowering(
        f"{call.op.name} is in distributed form; run `project` before lowering it"
    )


for _type in RANK_OPS.values():
    torch_emitter(_type.name)(_written)
for _type in collective.COLLECTIVES:
    torch_emitter(_type.name)(_distributed)


@torch_emitter("collective.coordinate")
def coordinate(call: Call) -> str:
    group = call.names.group(call.op)
    return call.write("coordinate({group})", "collectives", group=group)


@torch_emitter("collective.send")
def send(call: Call) -> str:
    op = call.op
    assert isinstance(op, SendToRankOp)
    peer = call.names.number(op.peer.value.data)
    function = "start_send" if op.is_asynchronous else "send"
    return call.write(f"{function}({{0}}, {{peer}})", "collectives", peer=peer)


@torch_emitter("collective.recv")
def recv(call: Call) -> str:
    op = call.op
    assert isinstance(op, RecvFromRankOp)
    peer = call.names.number(op.peer.value.data)
    type_ = call.result_type()
    dtype = torch_dtype(onnx_element_type(type_.element_type), "collective.recv")
    function = "start_recv" if op.is_asynchronous else "recv"
    given = f"{tuple(type_.get_shape())!r}, {dtype}, {peer}"
    return call.write(f"{function}({{given}})", "collectives", given=given)


torch_templates({"wait": "wait({0})"}, "collective", "collectives")
