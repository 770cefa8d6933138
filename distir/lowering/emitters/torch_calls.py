"""Emitters of the `torch` dialect, in which each op stands for one call of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import SSAValue

from distir.dialects.dist_attributes import ASYNCHRONOUS
from distir.dialects.torch import (
    IN_PLACE,
    KEPT,
    LinearOp,
    MessageOp,
    ProductIntoOp,
    StateCopiesOp,
    UpdatesOp,
)
from distir.lowering.emitter import Call, torch_emitter, torch_templates

torch_templates(
    {"addcmul": "torch.addcmul({0}, {1}, {2})", "add_into": "{0}.add_({1})"}, "torch"
)


@torch_emitter("torch.linear")
def linear(call: Call) -> str:
    op = call.op
    assert isinstance(op, LinearOp)
    x, weight, *bias = call.operands()
    matrix = weight if op.transposed is None else f"{weight}.t()"
    return f"F.linear({', '.join([x, matrix, *bias])})"


@torch_emitter("torch.add_look_ups")
def add_look_ups(call: Call) -> str:
    arguments = call.operands()
    if IN_PLACE in call.op.attributes:
        arguments.append("in_place=True")
    return f"{call.helper('indexing')}.add_look_ups({', '.join(arguments)})"


@torch_emitter("torch.bucket")
def bucket(call: Call) -> str:
    (size,) = call.result_shape() or (0,)
    return call.write(
        "torch.empty({size}, dtype={result:dtype}, device={devices}.here())",
        size=str(size),
        devices=call.helper("devices"),
    )


@torch_emitter("torch.product_into")
def product_into(call: Call) -> str:
    op = call.op
    assert isinstance(op, ProductIntoOp)
    x, y, memory = call.operands()
    x, y = (
        f"{operand}.t()" if is_transposed else operand
        for operand, is_transposed in ((x, op.x_transposed), (y, op.y_transposed))
    )
    shape, start = call.result_shape() or (), op.start.value.data
    place = f"{memory}[{start}:{start + prod(shape)}].view({shape!r})"
    return f"torch.mm({x}, {y}, out={place})"


@torch_emitter("torch.message")
def message(call: Call) -> str:
    op = call.op
    assert isinstance(op, MessageOp)
    count = len(op.outputs)
    parts = [_listed(call, op.inputs[:count]), call.names.group(op)]
    if op.dims_and_runs is not None:
        parts.append(repr(op.dims_and_runs))
    if op.reduction is not None:
        parts.append(f"reduction={op.reduction.data!r}")
    if op.overwrites is not None:
        parts.append(f"into={_listed(call, op.inputs[count:])}")
    if op.in_bucket is not None:
        parts.append(f"bucket={call.names.name(op.inputs[-1])}")
    start = "start_" if ASYNCHRONOUS in op.attributes else ""
    return f"{call.helper('buckets')}.{start}{op.kind.data}({', '.join(parts)})"


def _listed(call: Call, values: Sequence[SSAValue]) -> str:
    items = call.names.listed(list(values))
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


@torch_emitter("torch.state_copies")
def state_copies(call: Call) -> str:
    op = call.op
    assert isinstance(op, StateCopiesOp)
    helper, count = call.helper("offload"), len(op.outputs)
    values = [
        f"({', '.join(call.names.listed(list(own)))},)"
        for own in (op.inputs[:count], op.inputs[count:])
        if own
    ]
    if op.stores is not None:
        return f"{helper}.store({', '.join(values)})"
    written = f"{helper}.load({', '.join(values)})"
    return f"{written}[0]" if count == 1 else written


@torch_emitter("torch.updates")
def updates(call: Call) -> str:
    op = call.op
    assert isinstance(op, UpdatesOp)
    values, lists, count = list(op.inputs), op.lists.value.data, op.count
    each = [
        call.names.listed(values[i * count : (i + 1) * count]) for i in range(lists)
    ]
    parts = [f"({', '.join(items)},)" for items in each]
    given = [name.data for name in op.given.data]
    shared = [call.names.name(value) for value in values[lists * count :]]
    parts += shared[: len(shared) - len(given)]
    settings = shared[len(shared) - len(given) :]
    parts += [f"{name}={value}" for name, value in zip(given, settings, strict=True)]
    numbers = {n: v for n, v in op.settings.data.items() if isinstance(v, FloatAttr)}
    parts += [f"{name}={numbers[name].value.data!r}" for name in sorted(numbers)]
    parts += [f"{name}=True" for name in op.settings.data if name not in numbers]
    writes = [kind.data != KEPT for kind in op.in_place.data]
    if any(writes):
        parts.append(f"in_place={True if all(writes) else tuple(writes)}")
    written = f"{call.helper(op.module)}.{op.function.data}({', '.join(parts)})"
    one = len(op.outputs) == 1 and not op.overwritten
    return f"{written}[0]" if one else written
