"""Emitters of reductions, of searches for extremes, and of softmax."""

from __future__ import annotations

from collections.abc import Callable

from distir.lowering.emitter import Call, torch_emitter, torch_templates


def _axes(call: Call) -> str:
    """Returns the reduced axes as an expression; `None` for all of them."""
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
    """
    Whether PyTorch's own reduction can be called: for floats and known, non-empty axes.
    """
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
    "ReduceSum": "{0}.sum({axes}, keepdim={keepdims:flag})",
    "ReduceMean": "{0}.mean({axes}, keepdim={keepdims:flag})",
    "ReduceMax": "{0}.amax({axes}, keepdim={keepdims:flag})",
    "ReduceMin": "{0}.amin({axes}, keepdim={keepdims:flag})",
    "ReduceSumSquare": "{0}.square().sum({axes}, keepdim={keepdims:flag})",
    "ReduceL1": "{0}.abs().sum({axes}, keepdim={keepdims:flag})",
    "ReduceL2": "torch.linalg.vector_norm({0}, 2, {axes}, keepdim={keepdims:flag})",
    "ReduceLogSumExp": "torch.logsumexp({0}, {axes}, keepdim={keepdims:flag})",
    "ReduceLogSum": "{0}.sum({axes}, keepdim={keepdims:flag}).log()",
}


def _reduce(kind: str) -> Callable[[Call], str]:
    def emit(call: Call) -> str:
        if kind in _DIRECT and not _is_noop(call) and _direct(call) and call.rank():
            return call.write(_DIRECT[kind], axes=_all_axes(call))
        template = "reduce({kind}, {0}, {axes}, keep={keepdims:flag}, noop={noop_with_empty_axes:flag})"
        return call.write(template, "reductions", kind=repr(kind), axes=_axes(call))

    return emit


for _kind in (*_DIRECT, "ReduceProd"):
    torch_emitter(f"onnx.{_kind}")(_reduce(_kind))


torch_templates(
    {
        "Softmax": "F.softmax({0}, {axis})",
        "LogSoftmax": "F.log_softmax({0}, {axis})",
    }
)
_EXTREME = "arg_extreme({function}, {0}, {axis}, keep={keepdims:flag}, last={select_last_index:flag})"
torch_templates(
    {
        "ArgMax": _EXTREME.replace("{function}", "torch.argmax"),
        "ArgMin": _EXTREME.replace("{function}", "torch.argmin"),
        "TopK": "top_k({0}, {1:integer}, {axis}, largest={largest:flag})",
        "Hardmax": "hardmax({0}, {axis})",
        "LpNormalization": "lp_normalize({0}, {p}, {axis})",
    },
    module="reductions",
)
