"""
Limits the memory of reduce-scatters in flight. A reduce-scatter reads a whole gradient.
The memory of this gradient is freed only when the device has waited for the result, and
the optimizer uses the results only at the end of the step. Without a limit, all whole
gradients of a model would be in memory until then.

A device therefore waits for the reduce-scatters of one layer before it starts the
reduce-scatters of the layer after the next. Memory then holds the gradients of two
layers, as in PyTorch's FSDP. A wait is an `onnx.Identity` of the reduced value, because
a device waits for a value where it uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.base import CollectiveOp, bucket_of
from distir.dialects.collective_ops.over_axes import ReduceScatterOp
from distir.dialects.dist_attributes import ASYNCHRONOUS
from distir.dialects.onnx import operator
from distir.program import return_op

_ENTRY_UNITS = 2
"""
The most messages in flight in a function without calls, where layers cannot be told
apart.
"""


def release_gradients(reachable: Sequence[FuncOp]) -> None:
    """
    Inserts waits for reduce-scatters into functions, in place. `reachable` has called
    functions before their callers, and the entry function last.
    """
    in_flight: dict[str, tuple[int, ...]] = {}
    for function in reachable:
        is_entry = function is reachable[-1]
        has_calls = any(
            isinstance(op, CallOp) and in_flight.get(op.callee.string_value())
            for op in function.body.block.ops
        )
        if is_entry or has_calls:
            _limit(function, in_flight)
        in_flight[function.sym_name.data] = _still_in_flight(function, in_flight)


def _started(op: Operation, in_flight: dict[str, tuple[int, ...]]) -> list[SSAValue]:
    """
    Returns the results of `op` whose reduce-scatters are still in flight after `op`.
    """
    if isinstance(op, CallOp):
        return [op.results[i] for i in in_flight.get(op.callee.string_value(), ())]
    if isinstance(op, ReduceScatterOp) and ASYNCHRONOUS in op.attributes:
        return [op.result]
    return []


def _still_in_flight(
    function: FuncOp, in_flight: dict[str, tuple[int, ...]]
) -> tuple[int, ...]:
    """
    Returns the indices of a function's results whose reduce-scatters are still in
    flight when the function returns.
    """
    started = {
        value
        for op in function.body.block.ops
        for value in _started(op, in_flight)
        if len(list(value.uses)) == 1
    }
    returned = enumerate(return_op(function).operands)
    return tuple(i for i, value in returned if value in started)


def _limit(function: FuncOp, in_flight: dict[str, tuple[int, ...]]) -> None:
    """
    Inserts waits into a function so that at most the reduce-scatters of two layers are
    in flight. In a function without calls, the limit is two messages.
    """
    ops = list(function.body.block.ops)
    has_calls = any(isinstance(op, CallOp) for op in ops)
    places = {op: i for i, op in enumerate(ops)}
    units: list[tuple[int, list[SSAValue]]] = []
    layer = 0
    for op in ops:
        if isinstance(op, CallOp):
            layer += 1
        found = _started(op, in_flight)
        if not found:
            continue
        key = layer
        if isinstance(op, CollectiveOp) and not has_calls:
            key = places[bucket_of(op)[0]]
        if not units or units[-1][0] != key:
            allowed = 1 if isinstance(op, CallOp) else 0
            allowed = allowed if has_calls else _ENTRY_UNITS - 1
            while len(units) > allowed:
                _, values = units.pop(0)
                for value in values:
                    _wait(value, op, places)
            units.append((key, []))
        units[-1][1].extend(found)


def _wait(value: SSAValue, before: Operation, places: dict[Operation, int]) -> None:
    """
    Makes devices wait for `value` before the op `before`, unless an earlier op already
    uses `value`.
    """
    here = places[before]
    uses = list(value.uses)
    if any(places.get(use.operation, here) < here for use in uses):
        return
    if isinstance(before, CollectiveOp):
        before = bucket_of(before)[0]
    wait = operator("Identity").build_op([value], [value.type])
    wait.results[0].name_hint = value.name_hint
    Rewriter.insert_op(wait, InsertPoint.before(before))
    for use in uses:
        use.operation.operands[use.index] = wait.results[0]
