"""
Fuses the updates of many parameters into one call, in place where the old values have
no later use.

An update is delayed until an op that cannot be delayed (communication, a call, the
return) needs a value that depends on it. Ops that only use its results are delayed with
it. Delayed updates that differ only in their tensors then become one `torch.updates`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.traits import is_side_effect_free

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.tensors import element_type
from distir.dialects.torch import (
    KEPT,
    OVERWRITTEN,
    REUSED,
    UpdatesOp,
    settings_of,
)
from distir.dialects.train_ops.opaque import OpaqueBase
from distir.dialects.train_ops.optimizers import UpdateOp
from distir.dialects.train_ops.quantized_states import DequantizeStateOp
from distir.dialects.train_ops.recurrent import GatheredOp
from distir.lowering.rewrites.sharing import SharedMemory
from distir.program import entry_function, functions, return_op, updated_arguments


@dataclass
class _Waiting:
    """The delayed ops of a function, and the values that depend on them."""

    updates: list[UpdateOp] = field(default_factory=list[UpdateOp])
    others: list[Operation] = field(default_factory=list[Operation])
    values: set[SSAValue] = field(default_factory=set[SSAValue])

    def needed_by(self, op: Operation) -> bool:
        return any(value in self.values for value in op.operands)


class UpdateFuser:
    """
    Fuses the updates of a function. Updates in the entry function may overwrite its
    arguments.
    """

    def __init__(self, function: FuncOp, memory: SharedMemory, is_entry: bool):
        self.block = function.body.block
        self.memory = memory
        end = return_op(function)
        self.updated: dict[SSAValue, SSAValue] = {}
        if is_entry:
            for result, argument in updated_arguments(function).items():
                if list(end.operands).count(end.operands[result]) == 1:
                    self.updated[function.args[argument]] = end.operands[result]
        self.done: set[Operation] = set()

    def fuse(self) -> None:
        """Rewrites the function with fused updates."""
        waiting = _Waiting()
        for op in list(self.block.ops):
            is_update = isinstance(op, UpdateOp)
            is_end = isinstance(op, ReturnOp)
            if is_end or (waiting.needed_by(op) and (is_update or not _can_wait(op))):
                self._write(waiting, op)
                waiting = _Waiting()
            if isinstance(op, UpdateOp) and not _is_grouped(op):
                self._write(_Waiting([op]), op)
                continue
            if isinstance(op, UpdateOp):
                waiting.updates.append(op)
            elif waiting.needed_by(op):
                waiting.others.append(op)
            else:
                self.done.add(op)
                continue
            waiting.values.update(op.results)

    def _write(self, waiting: _Waiting, before: Operation) -> None:
        """Inserts the delayed ops before the op `before`."""
        groups: dict[tuple[object, ...], list[UpdateOp]] = {}
        for op in waiting.updates:
            key = (
                op.name,
                settings_of(op),
                tuple(op.given_settings),
                tuple(op.shared_operands),
                tuple(element_type(v) for v in op.own_operands),
                self._in_place(op),
            )
            groups.setdefault(key, []).append(op)
        for group in groups.values():
            new = UpdatesOp(group, self._in_place(group[0]))
            self.block.insert_op_before(new, before)
            self.done.add(new)
            # All new parameters, then all new states of one kind after the other.
            old = [
                r for own in zip(*(u.results for u in group), strict=True) for r in own
            ]
            for result, replaced in zip(new.results, old, strict=True):
                result.name_hint = replaced.name_hint
                replaced.replace_all_uses_with(result)
            for op in group:
                self.block.erase_op(op)
        for op in waiting.others:
            op.detach()
            self.block.insert_op_before(op, before)
            self.done.add(op)

    def _in_place(self, op: UpdateOp) -> tuple[str, ...]:
        """
        Returns, for each result of the update, whether the operand that the result
        replaces is kept, reused or overwritten (see `_becomes`).
        """
        places = op.REPLACED[: len(op.results)]
        return tuple(
            KEPT if place is None else self._becomes(op, op.operands[place], result)
            for place, result in zip(places, op.results, strict=True)
        )

    def _becomes(self, op: UpdateOp, operand: SSAValue, result: SSAValue) -> str:
        """
        Returns whether `operand` is kept, reused or overwritten. The operand is kept if
        another op may use its memory later, directly or through a view. Otherwise, an
        argument of the program is overwritten by the result that updates it, and the
        memory of another value is reused by any result.
        """
        if operand.type != result.type or self.memory.users(operand) - self.done != {
            op
        }:
            return KEPT
        if isinstance(operand, OpResult):
            is_own = not self.memory.sources(operand.op)[operand]
            return REUSED if is_own else KEPT
        return OVERWRITTEN if self.updated.get(operand) is result else KEPT


def _is_grouped(op: UpdateOp) -> bool:
    """
    Whether an update waits for other updates, so that one call computes all of them.
    Updates in several steps, and updates of states that are stored in a narrower type,
    are computed at once, because the intermediate results or wide states of all
    parameters would take memory together.
    """
    replaced = [op.operands[i] for i in op.REPLACED[: len(op.results)] if i is not None]
    return op.IS_WHOLE and not any(
        isinstance(value.owner, DequantizeStateOp)
        or (isinstance(value.owner, Operation) and value.owner.name == "onnx.Cast")
        for value in replaced
    )


def _can_wait(op: Operation) -> bool:
    return (
        not isinstance(op, CallOp | CollectiveOp | GatheredOp | OpaqueBase | ReturnOp)
        and is_side_effect_free(op)
        and not op.regions
    )


def fuse_updates(module: ModuleOp) -> None:
    """Fuses the updates in all functions of a per-rank program."""
    memory = SharedMemory.of(module)
    entry = entry_function(module)
    for name, function in functions(module).items():
        if name in memory.returned:
            UpdateFuser(function, memory, function is entry).fuse()
