"""Emitters of reductions, of searches for extremes, and of softmax."""

from __future__ import annotations

from collections.abc import Callable

from distir.lowering.emitter import Call, torch_emitter


def _axes(call: Call) -> str:
    """The reduced axes as an expression; `None` for all of them."""
    if call.has(1):
        known = call.constant(1)
        if known is not None and known.size == 0:
            return "None"
        return call.integers(1)
    return "None"


def _is_noop(call: Call) -> bool:
    known = call.constant(1)
    empty = not call.has(1) or (known is not None and known.size == 0)
    return empty and bool(call.attribute("noop_with_empty_axes"))


def _direct(call: Call) -> bool:
    """Whether PyTorch's own reduction can be called: floats, known and non-empty axes."""
    known = call.constant(1)
    return (
        call.element(0) in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")
        and (known is not None or not call.has(1))
        and 0 not in call.shape(0)
        and min(call.shape(0), default=1) > 0
    )


def _all_axes(call: Call) -> str:
    axes = _axes(call)
    return repr(tuple(range(call.rank()))) if axes == "None" else _tuple(axes)


def _tuple(text: str) -> str:
    values = text.strip("[]").split(", ")
    return values[0] if len(values) == 1 else f"({', '.join(values)})"


_DIRECT = {
    "ReduceSum": "{x}.sum({axes}, keepdim={keep})",
    "ReduceMean": "{x}.mean({axes}, keepdim={keep})",
    "ReduceMax": "{x}.amax({axes}, keepdim={keep})",
    "ReduceMin": "{x}.amin({axes}, keepdim={keep})",
    "ReduceSumSquare": "{x}.square().sum({axes}, keepdim={keep})",
    "ReduceL1": "{x}.abs().sum({axes}, keepdim={keep})",
    "ReduceL2": "torch.linalg.vector_norm({x}, 2, {axes}, keepdim={keep})",
    "ReduceLogSumExp": "torch.logsumexp({x}, {axes}, keepdim={keep})",
    "ReduceLogSum": "{x}.sum({axes}, keepdim={keep}).log()",
}


def _reduce(kind: str) -> Callable[[Call], str]:
    def emit(call: Call) -> str:
        keep = bool(call.attribute("keepdims"))
        if kind in _DIRECT and not _is_noop(call) and _direct(call) and call.rank():
            return _DIRECT[kind].format(
                x=call.operand(0), axes=_all_axes(call), keep=keep
            )
        noop = bool(call.attribute("noop_with_empty_axes"))
        return (
            f"{call.helper('reductions')}.reduce({kind!r}, {call.operand(0)}, "
            f"{_axes(call)}, keep={keep}, noop={noop})"
        )

    return emit


for _kind in (*_DIRECT, "ReduceProd"):
    torch_emitter(f"onnx.{_kind}")(_reduce(_kind))


@torch_emitter("onnx.ArgMax", "onnx.ArgMin")
def arg_extreme(call: Call) -> str:
    function = "argmax" if call.op.name == "onnx.ArgMax" else "argmin"
    return (
        f"{call.helper('reductions')}.arg_extreme(torch.{function}, {call.operand(0)}, "
        f"{call.attribute('axis')}, keep={bool(call.attribute('keepdims'))}, "
        f"last={bool(call.attribute('select_last_index'))})"
    )


@torch_emitter("onnx.TopK")
def top_k(call: Call) -> str:
    return (
        f"{call.helper('reductions')}.top_k({call.operand(0)}, {call.integer(1)}, "
        f"{call.attribute('axis')}, largest={bool(call.attribute('largest'))})"
    )


@torch_emitter("onnx.Softmax")
def softmax(call: Call) -> str:
    return f"F.softmax({call.operand(0)}, {call.attribute('axis')})"


@torch_emitter("onnx.LogSoftmax")
def log_softmax(call: Call) -> str:
    return f"F.log_softmax({call.operand(0)}, {call.attribute('axis')})"


@torch_emitter("onnx.Hardmax")
def hardmax(call: Call) -> str:
    return f"{call.helper('reductions')}.hardmax({call.operand(0)}, {call.attribute('axis')})"


@torch_emitter("onnx.LpNormalization")
def lp_normalization(call: Call) -> str:
    return (
        f"F.normalize({call.operand(0)}, {call.attribute('p')}, "
        f"{call.attribute('axis')}, eps=0.0).nan_to_num(0.0)"
    )
