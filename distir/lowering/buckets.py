"""The call of the helper that sends several tensors in one message."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr

from distir.dialects.collective import AllReduceOp, CollectiveOp
from distir.lowering.emitter import Call


def written_bucket(calls: Sequence[Call]) -> str:
    """
    `buckets.all_gather((x, y), group, ((dim, run), ...))` for collectives that travel in one
    message, a tuple of tensors; without dimensions where whole tensors are reduced.
    """
    call, ops = calls[0], [c.op for c in calls]
    names = [c.operand(0) for c in calls]
    parts = [f"({', '.join(names)})", call.names.group(ops[0])]
    first = ops[0]
    assert isinstance(first, CollectiveOp)
    if not isinstance(first, AllReduceOp):
        parts.append(repr(tuple(_dim_and_run(op) for op in ops)))
    if first.reduction is not None:
        parts.append(f"reduction={first.reduction.data!r}")
    function = first.name.removeprefix("collective.")
    if first.is_asynchronous:
        function = f"start_{function}"
    return f"{call.helper('buckets')}.{function}({', '.join(parts)})"


def _dim_and_run(op: object) -> tuple[int | None, int | None]:
    assert isinstance(op, CollectiveOp)
    return _integer(op.dim), _integer(op.run)


def _integer(attr: IntegerAttr | None) -> int | None:
    return None if attr is None else attr.value.data
