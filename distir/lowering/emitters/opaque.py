"""Emitters of opaque modules and of their gradients."""

from __future__ import annotations

from math import prod

from distir.dialects.train_ops.opaque import OpaqueBase, OpaqueGradOp, OpaqueOp
from distir.lowering.emitter import Call, torch_emitter
from distir.sharding.opaque_rule import parse_opaque_rule


@torch_emitter("train.opaque")
def opaque(call: Call) -> str:
    op = call.op
    assert isinstance(op, OpaqueOp)
    inputs = [call.names.name(v) for v in op.inputs]
    arguments = [f"[{', '.join(inputs)}]", _how(op), *_drawn_and_group(call, op)]
    return _written(call, op, "call", arguments)


@torch_emitter("train.opaque_grad")
def opaque_gradient(call: Call) -> str:
    op = call.op
    assert isinstance(op, OpaqueGradOp)
    lists = (
        f"[{', '.join(call.names.name(v) for v in values)}]"
        for values in (op.gradients, op.inputs)
    )
    sizes = dict(zip(op.axis_names, op.axis_sizes, strict=True))
    placed = parse_opaque_rule(op.rule.data).operands[: len(op.gradients)]
    copies = [
        prod(n for axis, n in sizes.items() if axis not in dict(own)) for own in placed
    ]
    numbers = (op.wanted, op.known, tuple(copies))
    arguments = [*lists, _how(op), *map(repr, numbers), *_drawn_and_group(call, op)]
    return _written(call, op, "gradient", arguments)


def _written(call: Call, op: OpaqueBase, function: str, arguments: list[str]) -> str:
    types = ", ".join(
        f"({tuple(call.result_shape(i) or ())!r}, {call.result_dtype(i)})"
        for i in range(len(op.results))
    )
    written = ", ".join([repr(op.symbol), f"[{types}]", *arguments])
    return f"{call.helper('opaque')}.{function}({written})"


def _how(op: OpaqueBase) -> str:
    found: dict[str, object] = {
        "tensors": op.tensor_names,
        "arguments": op.call_arguments,
        "trains": op.trains is not None,
    }
    if op.axes is not None:
        found["sizes"] = dict(zip(op.axis_names, op.axis_sizes, strict=True))
    return repr(found)


def _drawn_and_group(call: Call, op: OpaqueBase) -> list[str]:
    """
    Returns the keyword arguments for random numbers, if the module draws them, and for
    the process group, if it communicates.
    """
    found: list[str] = []
    if op.counter is not None:
        drawn = [call.names.name(v) for v in (op.counter, *op.coordinates)]
        found += [f"key={op.random_key!r}", f"drawn=[{', '.join(drawn)}]"]
    if op.axes is not None:
        found.append(f"group={call.names.group(op)}")
    return found
