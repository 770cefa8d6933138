"""
The ops of a pipeline's entry function while it is compiled for the simulator, and their
order if forward and backward calls are computed beside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.func import CallOp
from xdsl.ir import Operation

from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    CompiledFunction,
    CompiledStep,
    FixedOperands,
)
from distir.transforms.overlap.paired_calls import paired_order


@dataclass(eq=False)
class CompiledSite:
    """
    The use of a compiled function by a stage. One op stands for all calls of the
    function by this stage.

    - `op`: the op that stands for the calls;
    - `callee`: the compiled function;
    - `mesh`: the index of the stage's mesh;
    - `is_forward`: whether the function is of the forward pass;
    - `fixed`: the operands that are arguments of the program and the same in all
      micro-batches;
    - `common`: all operands that are not in `fixed`; None for an operand that depends
      on the micro-batch.
    """

    op: CallOp
    callee: CompiledFunction
    mesh: int
    is_forward: bool = False
    fixed: FixedOperands | None = None
    common: Sequence[int | None] = ()


@dataclass
class EntryItem:
    """
    An op of the entry function. A slot is the number of a value.

    - `op`: the op;
    - `operands`, `defined`: the slots of the op's operands and results;
    - `step`: the step that the simulator executes for the op; None if the step depends
      on the ops around it.
    """

    op: Operation
    operands: Sequence[int]
    defined: range
    step: CompiledStep | None = None


def paired_items(
    items: Sequence[EntryItem],
    may_pair: Callable[[CallStep, CallStep], bool],
    join: Callable[[CallStep, CallStep], CompiledSite],
    reserve: Callable[[Sequence[int]], range],
) -> tuple[list[EntryItem], dict[int, int]]:
    """
    Joins pairs of calls, as `pair_calls` joins them in the entry function of a program.

    - `items`: the ops of the entry function, in order;
    - `may_pair`: whether two calls that follow each other on a mesh may be joined;
    - `join`: returns the use of the function that does the work of both calls;
    - `reserve`: reserves new slots for values like those in the given slots.

    Returns the ops in their new order, and the new slots of the results of joined calls
    by their slots before.
    """
    made = {slot: place for place, item in enumerate(items) for slot in item.defined}
    needs = [{made[s] for s in item.operands if s in made} for item in items]
    pairs: dict[int, int] = {}
    latest: dict[int | None, tuple[int, CallStep]] = {}
    for place, item in enumerate(items):
        if isinstance(step := item.step, CallStep):
            if step.mesh in latest:
                first, before = latest[step.mesh]
                if first not in needs[place] and may_pair(before, step):
                    pairs[first] = place
                needs[place].add(first)
            latest[step.mesh] = place, step
    found: list[EntryItem] = []
    renamed: dict[int, int] = {}
    sites: dict[Operation, CompiledSite] = {}
    for group in paired_order(needs, pairs):
        steps = [items[place].step for place in group]
        if len(steps) == 1:
            found.append(_renamed(items[group[0]], renamed))
            continue
        first, second = steps
        assert isinstance(first, CallStep) and isinstance(second, CallStep)
        site = join(first, second)
        if site.op not in sites:
            site.fixed = _fixed_of_both(first, second)
            sites[site.op] = site
        old = *first.defined, *second.defined
        operands = (*first.operands, *second.operands)
        step = CallStep(
            op=site.op,
            operands=tuple([renamed.get(slot, slot) for slot in operands]),
            defined=reserve(old),
            callee=site.callee,
            mesh=site.mesh,
            fixed=site.fixed,
        )
        renamed.update(zip(old, step.defined, strict=True))
        found.append(EntryItem(site.op, step.operands, step.defined, step))
    return found, renamed


def _renamed(item: EntryItem, renamed: dict[int, int]) -> EntryItem:
    """Returns an op whose operands have the new slots in `renamed`."""
    if renamed.keys().isdisjoint(item.operands):
        return item
    operands = tuple([renamed.get(slot, slot) for slot in item.operands])
    step = item.step and item.step.moved(renamed, 0)
    return replace(item, operands=operands, step=step)


def _fixed_of_both(first: CallStep, second: CallStep) -> FixedOperands:
    """
    Returns the arguments of the program that a joined call takes: those of both calls.
    The arguments of the second function follow those of the first.
    """
    slots, places = list[int](), list[int]()
    before = 0
    for step in (first, second):
        if step.fixed is not None:
            slots += step.fixed.slots
            places += [before + place for place in step.fixed.places]
        before += step.callee.arguments
    return FixedOperands(tuple(slots), tuple(places))
