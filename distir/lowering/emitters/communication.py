"""Emitters of the `collective` dialect in per-rank form."""

from xdsl.dialects.builtin import IntegerAttr

from distir.dialects import collective
from distir.dialects.onnx_values import onnx_element_type
from distir.lowering.emitter import Call, NoLowering, torch_dtype, torch_emitter


def _op(call: Call) -> collective.CollectiveOp:
    op = call.op
    assert isinstance(op, collective.CollectiveOp)
    if not op.is_per_rank:
        raise NoLowering(
            f"{op.name} is in distributed form; run `project` before lowering it"
        )
    return op


def _written(call: Call, function: str, *names: str) -> str:
    """
    `collectives.function(x, group, name=value, ...)` with the properties that are set;
    `start_function` for what is asynchronous.
    """
    op = _op(call)
    if op.is_asynchronous:
        function = f"start_{function}"
    parts = [call.operand(0), call.names.group(op)]
    for name in names:
        attr = op.properties.get(name)
        if isinstance(attr, IntegerAttr):
            parts.append(f"{name}={attr.value.data}")
    if op.reduction is not None:
        parts.append(f"reduction={op.reduction.data!r}")
    return f"{call.helper('collectives')}.{function}({', '.join(parts)})"


@torch_emitter("collective.all_reduce")
def all_reduce(call: Call) -> str:
    return _written(call, "all_reduce")


@torch_emitter("collective.all_gather")
def all_gather(call: Call) -> str:
    return _written(call, "all_gather", "dim", "run")


@torch_emitter("collective.reduce_scatter")
def reduce_scatter(call: Call) -> str:
    return _written(call, "reduce_scatter", "dim", "run")


@torch_emitter("collective.all_to_all")
def all_to_all(call: Call) -> str:
    return _written(call, "all_to_all", "dim", "run", "split_dim", "split_run")


@torch_emitter("collective.slice")
def slice_(call: Call) -> str:
    return _written(call, "keep_shard", "dim", "run")


@torch_emitter("collective.permute")
def permute(call: Call) -> str:
    return _written(call, "permute", "shift")


def _rooted(call: Call, function: str, *names: str) -> str:
    op = _op(call)
    assert isinstance(op, collective.RootedOp) and op.ranks is not None
    root = op.ranks[0] if op.root is None else op.root.value.data
    written = _written(call, function, *names)
    return f"{written[:-1]}, root={call.names.number(root)})"


@torch_emitter("collective.broadcast")
def broadcast(call: Call) -> str:
    return _rooted(call, "broadcast")


@torch_emitter("collective.scatter")
def scatter(call: Call) -> str:
    return _rooted(call, "scatter", "dim", "run")


@torch_emitter("collective.reduce")
def reduce(call: Call) -> str:
    return _rooted(call, "reduce")


@torch_emitter("collective.gather")
def gather(call: Call) -> str:
    return _rooted(call, "gather", "dim", "run")


@torch_emitter("collective.coordinate")
def coordinate(call: Call) -> str:
    return f"{call.helper('collectives')}.coordinate({call.names.group(call.op)})"


@torch_emitter("collective.send")
def send(call: Call) -> str:
    op = call.op
    assert isinstance(op, collective.SendToRankOp)
    peer = call.names.number(op.peer.value.data)
    function = "start_send" if op.is_asynchronous else "send"
    return f"{call.helper('collectives')}.{function}({call.operand(0)}, {peer})"


@torch_emitter("collective.recv")
def recv(call: Call) -> str:
    op = call.op
    assert isinstance(op, collective.RecvFromRankOp)
    peer = call.names.number(op.peer.value.data)
    type_ = call.result_type()
    dtype = torch_dtype(onnx_element_type(type_.element_type), "collective.recv")
    function = "start_recv" if op.is_asynchronous else "recv"
    shape = tuple(type_.get_shape())
    return f"{call.helper('collectives')}.{function}({shape!r}, {dtype}, {peer})"


@torch_emitter("collective.wait")
def wait(call: Call) -> str:
    return f"{call.helper('collectives')}.wait({call.operand(0)})"
