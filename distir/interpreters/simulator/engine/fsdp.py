"""
The memory that PyTorch's FSDP takes for longer than a program does.

A program frees a gathered parameter after its last use, and a gradient when it is
reduced. FSDP keeps three kinds of values longer. It gathers the parameters of the root
module, such as embeddings and the head, once, and keeps them until the end of the
backward pass. It reduces the root's gradients at this end. And it holds a buffer of one
layer's parameters between the layers' forward and backward passes: in the forward pass,
the buffer of the last gather, and in the backward pass that of the next one, which
begins before the loss's gradient is computed, if the model computes the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllGatherOp, ReduceScatterOp
from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    CompiledStep,
    OpStep,
)
from distir.program import argument_roles


def keep_gathered(function: FuncOp, steps: Sequence[CompiledStep]) -> dict[int, int]:
    """
    Returns the gathered parameters and the gradients that FSDP keeps after their last
    use in a function: for each slot (the index of a value), the index of the step after
    which its memory becomes free. A parameter belongs to a layer if a call uses it,
    else to the root. If the root's parameter is gathered again, the second copy is
    removed from `steps`, as FSDP still has the first. The result is empty for a
    function that passes no gathered parameters to calls, or gathers each of them once,
    as with ZeRO 1 and 2.
    """
    roles = argument_roles(function)
    of_layers: dict[SSAValue, list[int]] = {}
    of_root: dict[SSAValue, list[int]] = {}
    axes: set[tuple[str, ...]] = set()
    for place, step in enumerate(steps):
        if not isinstance(step.op, AllGatherOp):
            continue
        argument = _source(step.op.source)
        if isinstance(argument, BlockArgument) and roles[argument.index] == "parameter":
            found = of_layers if _is_passed(step.op.result) else of_root
            found.setdefault(argument, []).append(place)
            axes.add(step.op.axis_names)
    slots = {steps[p].defined[0] for places in of_layers.values() for p in places}
    calls = [
        place
        for place, step in enumerate(steps)
        if isinstance(step, CallStep) and not slots.isdisjoint(step.operands)
    ]
    if not calls or all(len(places) == 1 for places in of_layers.values()):
        return {}
    reduced = {
        step.operands[0]: place
        for place, step in enumerate(steps)
        if isinstance(step.op, ReduceScatterOp) and step.op.axis_names in axes
    }
    after = calls[-1] + 1
    end = max((*reduced.values(), after))
    if end == len(steps) or not isinstance(steps[end], OpStep):
        return {}
    passed = {slot for call in calls for slot in steps[call].defined}
    gradients = dict.fromkeys(reduced.keys() - passed, end)
    return {
        **gradients,
        **_until(end, of_root, steps),
        **_between(calls, of_layers, steps),
    }


def _between(
    calls: Sequence[int],
    gathered: dict[SSAValue, list[int]],
    steps: Sequence[CompiledStep],
) -> dict[int, int]:
    """
    Returns, for the gathered parameters of the last layer, by slot, the steps that
    gather them again. `gathered` maps parameters to the steps that gather them, and
    `calls` holds the steps that call layers. A layer is the last one if its parameters
    are gathered again before the next call.
    """
    kept: dict[int, int] = {}
    for places in gathered.values():
        for first, second in pairwise(places):
            slot = steps[first].defined[0]
            before = [call for call in calls if call < second]
            if before and slot in steps[before[-1]].operands:
                kept[slot] = second
    return kept


def _until(
    end: int, gathered: dict[SSAValue, list[int]], steps: Sequence[CompiledStep]
) -> dict[int, int]:
    """
    Returns `end` for each parameter of the root, by slot. `gathered` maps parameters to
    the steps that gather them, of which all but the first take no memory.
    """
    kept: dict[int, int] = {}
    for first, *others in gathered.values():
        for place in (first, *others):
            step = steps[place]
            assert isinstance(step, OpStep)
            (result,) = step.results
            if place == first:
                kept[result.slot] = end
            else:
                step.results, step.workspace = (result._replace(size=0),), 0
    return kept


def _source(value: SSAValue) -> SSAValue:
    """Returns the value from which ops of one operand, such as casts, made `value`."""
    while isinstance(op := value.owner, Operation):
        if len(op.operands) != 1 or isinstance(op, CollectiveOp):
            break
        value = op.operands[0]
    return value


def _is_passed(value: SSAValue) -> bool:
    """Whether a call uses `value`, or its result under ops of one operand."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, CallOp):
            return True
        if len(op.operands) == 1 and any(_is_passed(result) for result in op.results):
            return True
    return False
