"""
Makes one call of the updates of many parameters, in place where nobody needs the old
values.

An update is delayed until a value that depends on it is needed by an op that cannot be
delayed itself (communication, a call, the end); ops that only prepare its results are
delayed with it. Then the delayed updates that differ in their tensors alone become one
`torch.updates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ArrayAttr, IntAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import is_side_effect_free

from distir.dialects.collective import CollectiveOp
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.gathered_recurrent import GatheredOp
from distir.dialects.train_ops.optimizers import AdamFamilyOp, SgdOp, UpdateOp
from distir.lowering.emitter import Call, torch_emitter
from distir.lowering.rewrites.sharing import SharedMemory
from distir.program import entry_function, functions, return_op, updated_arguments

OVERWRITTEN, REUSED, KEPT = "overwritten", "reused", "kept"
"""What becomes of the operands that updates replace."""


@irdl_op_definition
class UpdatesOp(IRDLOperation):
    """
    Several updates that differ in their tensors alone, by one call of the helper `function`
    with these `settings` (Python text). `in_place` says of each list of results what becomes of
    the operands that it replaces: `overwritten` are arguments of the program, `reused` is
    memory that nobody else needs, and `kept` is what must stay as it is.

    Operands are `lists` lists of equally many tensors, one list behind the other:
    parameters, gradients, then the optimizer's states; then the number of steps, if updates
    need it, and the settings that are operands, which `given` names. Results are the lists
    of new parameters and states; with `in_place` they are the operands that they replace.

    Like `torch.call`, it is only written by fusions, in memory, and belongs to no dialect.
    """

    name = "torch.updates"

    inputs = var_operand_def()
    outputs = var_result_def()
    function = prop_def(StringAttr)
    settings = prop_def(StringAttr)
    lists = prop_def(IntAttr)
    given = prop_def(ArrayAttr[StringAttr])
    in_place = prop_def(ArrayAttr[StringAttr])

    def __init__(self, group: Sequence[UpdateOp], in_place: Sequence[str]):
        first = group[0]
        lists = first.tensors
        each = [op.tensors for op in group]
        operands = [v for own in zip(*each, strict=True) for v in own]
        results = [v.type for v in _listed_results(group)]
        super().__init__(
            operands=[[*operands, *_shared(first)]],
            result_types=[results],
            properties={
                "function": StringAttr(first.name.removeprefix("train.")),
                "settings": StringAttr(_settings(first)),
                "lists": IntAttr(len(lists)),
                "given": ArrayAttr([StringAttr(n) for n in first.given_settings]),
                "in_place": ArrayAttr([StringAttr(each) for each in in_place]),
            },
        )

    @property
    def replaced(self) -> list[SSAValue]:
        """
        Returns the parameters and states that the results replace, in the order of the
        results.
        """
        operands, count = list(self.inputs), self.count
        return [*operands[:count], *operands[2 * count : self.lists.data * count]]

    @property
    def overwritten(self) -> dict[SSAValue, SSAValue]:
        """The results that are arguments of the program, overwritten, and these."""
        kinds = [kind.data for kind in self.in_place.data]
        pairs = zip(self.outputs, self.replaced, strict=True)
        return {
            result: operand
            for i, (result, operand) in enumerate(pairs)
            if kinds[i // self.count] == OVERWRITTEN
        }

    @property
    def count(self) -> int:
        """The number of parameters that are updated."""
        return len(self.outputs) // (self.lists.data - 1)


def _listed_results(group: Sequence[UpdateOp]) -> list[SSAValue]:
    """Returns all new parameters, then all new states of one kind after the other."""
    return [r for own in zip(*(u.results for u in group), strict=True) for r in own]


def _shared(op: UpdateOp) -> list[SSAValue]:
    """
    Returns the operands that updates of several parameters share: the number of steps, and
    settings.
    """
    step = [op.step] if isinstance(op, AdamFamilyOp) else []
    return [*step, *op.step_settings]


def _replaced(op: UpdateOp) -> list[SSAValue]:
    """Returns the operands that the results replace, in the order of the results."""
    parameter, _, *states = op.tensors
    return [parameter, *states]


def _settings(op: UpdateOp) -> str:
    """Returns the hyper-parameters that are no operands, as arguments of the helper."""
    given = op.given_settings
    written = [
        f"{name}={value!r}"
        for name, value in sorted(op.settings.items())
        if name not in given
    ]
    if isinstance(op, SgdOp) and op.nesterov is not None:
        written.append("nesterov=True")
    return ", ".join(written)


@torch_emitter("torch.updates")
def updates(call: Call) -> str:
    op = call.op
    assert isinstance(op, UpdatesOp)
    values, lists = list(op.inputs), op.lists.data
    count = op.count
    each = [
        call.names.listed(values[i * count : (i + 1) * count]) for i in range(lists)
    ]
    parts = [f"({', '.join(items)},)" for items in each]
    given = [name.data for name in op.given.data]
    shared = [call.names.name(value) for value in values[lists * count :]]
    parts += shared[: len(shared) - len(given)]
    settings = shared[len(shared) - len(given) :]
    parts += [f"{name}={value}" for name, value in zip(given, settings, strict=True)]
    parts += [op.settings.data] if op.settings.data else []
    writes = [kind.data != KEPT for kind in op.in_place.data]
    if any(writes):
        parts.append(f"in_place={True if all(writes) else tuple(writes)}")
    written = f"{call.helper('optimizers')}.{op.function.data}({', '.join(parts)})"
    one = len(op.outputs) == 1 and not op.overwritten
    return f"{written}[0]" if one else written


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
    Fuses the updates of a function; those of the entry function may overwrite its
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
        """Rewrites the function."""
        waiting = _Waiting()
        for op in list(self.block.ops):
            is_update = isinstance(op, UpdateOp)
            is_end = isinstance(op, ReturnOp)
            if is_end or (waiting.needed_by(op) and (is_update or not _can_wait(op))):
                self._write(waiting, op)
                waiting = _Waiting()
            if isinstance(op, UpdateOp):
                waiting.updates.append(op)
            elif waiting.needed_by(op):
                waiting.others.append(op)
            else:
                self.done.add(op)
                continue
            waiting.values.update(op.results)

    def _write(self, waiting: _Waiting, before: Operation) -> None:
        """Inserts the delayed ops before an op."""
        groups: dict[tuple[object, ...], list[UpdateOp]] = {}
        for op in waiting.updates:
            key = (
                op.name,
                _settings(op),
                tuple(op.given_settings),
                tuple(_shared(op)),
                tuple(element_type(v) for v in op.tensors),
                self._in_place(op),
            )
            groups.setdefault(key, []).append(op)
        for group in groups.values():
            new = UpdatesOp(group, self._in_place(group[0]))
            self.block.insert_op_before(new, before)
            self.done.add(new)
            for result, replaced in zip(
                new.results, _listed_results(group), strict=True
            ):
                result.name_hint = replaced.name_hint
                replaced.replace_all_uses_with(result)
            for op in group:
                self.block.erase_op(op)
        for op in waiting.others:
            op.detach()
            self.block.insert_op_before(op, before)
            self.done.add(op)

    def _in_place(self, op: UpdateOp) -> tuple[str, ...]:
        """What becomes of each operand that a result replaces."""
        pairs = zip(_replaced(op), op.results, strict=True)
        return tuple(self._becomes(op, operand, result) for operand, result in pairs)

    def _becomes(self, op: UpdateOp, operand: SSAValue, result: SSAValue) -> str:
        """
        An operand is overwritten where nothing else looks at it any more, directly or through
        a view: an argument of the program by the result that updates it, other values by any.
        """
        if operand.type != result.type or self.memory.users(operand) - self.done != {
            op
        }:
            return KEPT
        if isinstance(operand, OpResult):
            is_own = not self.memory.sources(operand.op)[operand]
            return REUSED if is_own else KEPT
        return OVERWRITTEN if self.updated.get(operand) is result else KEPT


def _can_wait(op: Operation) -> bool:
    return (
        not isinstance(op, CallOp | CollectiveOp | GatheredOp | ReturnOp)
        and is_side_effect_free(op)
        and not op.regions
    )


def fuse_updates(module: ModuleOp) -> None:
    """Fuses the updates of all functions of a per-rank program."""
    memory = SharedMemory.of(module)
    entry = entry_function(module)
    for name, function in functions(module).items():
        if name in memory.returned:
            UpdateFuser(function, memory, function is entry).fuse()
