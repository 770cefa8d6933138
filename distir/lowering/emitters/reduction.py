"""Emitters of reductions."""

from __future__ import annotations

from collections.abc import Callable

from distir.dialects.onnx_ops.torch_calls import REDUCTIONS
from distir.lowering.emitter import Call, torch_emitter


def _axes(call: Call) -> str:
    """
    Returns an expression for the list of reduced axes, or the text `None` for all axes.
    """
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
    Whether PyTorch's own reduction computes the same as the op: for floats, constant
    axes, and known sizes above 0.
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


def _reduce(kind: str) -> Callable[[Call], str]:
    def emit(call: Call) -> str:
        if kind in REDUCTIONS and not _is_noop(call) and _direct(call) and call.rank():
            return call.write(REDUCTIONS[kind], axes=_all_axes(call))
        template = "reduce({kind}, {0}, {axes}, keep={keepdims:flag}, noop={noop_with_empty_axes:flag})"
        return call.write(template, "reductions", kind=repr(kind), axes=_axes(call))

    return emit


for _kind in (*REDUCTIONS, "ReduceProd"):
    torch_emitter(f"onnx.{_kind}")(_reduce(_kind))
