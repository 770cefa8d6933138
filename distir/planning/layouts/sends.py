"""The sends between pipeline stages, as the search for layouts prices them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue, Use

from distir.dialects.dist import Layout, layout_of
from distir.dialects.dist_attributes import PLACE
from distir.planning.costs.micro_batches import MicroBatchCosts
from distir.program import entry_function
from distir.sharding.mesh import TIME_AXIS
from distir.transforms.pipelines.assigned_stages import stages_reached
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.kinds import Kind


def places_of(module: ModuleOp) -> dict[Operation, int]:
    """Returns the position of each op of the entry function, counted from 0."""
    return {op: i for i, op in enumerate(entry_function(module).body.block.ops)}


def note_places(places: Mapping[Operation, int]) -> None:
    """
    Marks each op with its position in the sequential program (attribute `dist.place`),
    so that a changed program shows the original position.
    """
    for op, place in places.items():
        op.attributes[PLACE] = PLACE.attr(place)


def take_places(module: ModuleOp) -> dict[Operation, int]:
    """
    Removes from the ops of the entry function the positions that `note_places` wrote.
    Returns the positions by op.
    """
    return PLACE.taken_from(entry_function(module).body.block.ops)


@dataclass(frozen=True)
class StagesOfOps:
    """
    The pipeline stages of the ops and arguments of a sequential program.

    - `ops`: the stages of each op, by the op's position in the entry function. An op
      that runs for each micro-batch is on one stage; an op that runs before the
      micro-batches is on every stage that needs its result. Ops that run after the
      micro-batches are missing;
    - `arguments`: the stage on which each argument lives.
    """

    ops: Mapping[int, frozenset[int]]
    arguments: Sequence[int]

    @staticmethod
    def of(division: DividedProgram) -> StagesOfOps:
        """
        Returns the stages of a divided program, by the positions in the sequential
        program that `note_places` wrote onto its ops. Ops without a position are left
        out; later steps made them, for example for reshards.
        """
        found: dict[int, frozenset[int]] = {}
        for op, stages in _stages(division).items():
            place = PLACE.of(op.attributes)
            if place is not None:
                found[place] = stages
        return StagesOfOps(found, _argument_stages(division))

    def sent(self, function: FuncOp) -> Iterator[tuple[SSAValue, Use]]:
        """
        Yields the values of the entry function that are sent to another stage, each
        with a use on that stage. A value is yielded once per stage that receives it.
        `function` is the entry function of the sequential program.
        """
        ops = enumerate(function.body.block.ops)
        stages = {op: self.ops[i] for i, op in ops if i in self.ops}
        yield from _sent(function, stages, self.arguments)


def _stages(division: DividedProgram) -> dict[Operation, frozenset[int]]:
    structure, stages = division.structure, division.stages
    reached = stages_reached(structure, stages, stages)
    found = {op: frozenset((stage,)) for op, stage in stages.items()}
    for op, kind in structure.kinds.items():
        if kind is Kind.BEFORE:
            found[op] = frozenset().union(*(reached.get(r, ()) for r in op.results))
    return found


def _argument_stages(division: DividedProgram) -> list[int]:
    stages, block = division.assigned.arguments, division.structure.function.body.block
    return [stages[arg] for arg in block.args]


def _sent(
    function: FuncOp,
    stages: Mapping[Operation, frozenset[int]],
    arguments: Sequence[int],
) -> Iterator[tuple[SSAValue, Use]]:
    values: list[tuple[SSAValue, frozenset[int]]] = [
        *(
            (a, frozenset((s,)))
            for a, s in zip(function.body.block.args, arguments, strict=True)
        ),
        *((result, own) for op, own in stages.items() for result in op.results),
    ]
    for value, own in values:
        reached = own
        for use in value.uses:
            new = stages.get(use.operation, reached) - reached
            if isinstance(value.type, TensorType):
                yield from ((value, use) for _ in new)
            reached = reached | new


def most_to_gain(division: DividedProgram, costs: MicroBatchCosts) -> float:
    """
    Returns the most seconds per step that better layouts can save on the sends of a
    pipeline. The lowest possible cost assumes that all sent values are split over all
    devices of a rank.
    """
    function, batches = division.structure.function, division.structure.micro_batches
    total = 0.0
    for value, _ in _sent(function, _stages(division), _argument_stages(division)):
        layout = layout_of(value) or Layout(costs.mesh.name)
        axes = *layout.split_axes, *layout.partial_axes
        times = batches if TIME_AXIS in axes else 1
        total += times * costs.saved_by_splitting(value.type, layout)
    return total
