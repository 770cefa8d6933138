"""The sends between the stages of a pipeline, for the search of layouts."""

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
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.homes import stages_reached
from distir.transforms.pipelines.kinds import Kind


def places_of(module: ModuleOp) -> dict[Operation, int]:
    """Returns the place of each op in the entry function."""
    return {op: i for i, op in enumerate(entry_function(module).body.block.ops)}


def note_places(places: Mapping[Operation, int]) -> None:
    """Notes on ops the places that they have in a program (`dist.place`)."""
    for op, place in places.items():
        op.attributes[PLACE] = PLACE.attr(place)


def take_places(module: ModuleOp) -> dict[Operation, int]:
    """Removes what `note_places` noted on ops of the entry function, and returns it."""
    return PLACE.taken_from(entry_function(module).body.block.ops)


@dataclass(frozen=True)
class StagesOfOps:
    """
    The stages of a pipeline on which the ops of a sequential program run.

    - `ops`: the stages of ops of the entry function, by the ops' places there. What runs for
      each micro-batch is on one stage, what runs before them on all that need it. Ops that
      run after them are missing: gradients are sent where terms of one sum are on several
      stages, as those of tied weights, once in a step;
    - `arguments`: the stage on which each argument lives.
    """

    ops: Mapping[int, frozenset[int]]
    arguments: Sequence[int]

    @staticmethod
    def of(division: DividedProgram) -> StagesOfOps:
        """
        Returns the stages of a divided program whose ops know their places in the
        sequential one (`note_places`). Ops that layouts made of others have no place.
        """
        found: dict[int, frozenset[int]] = {}
        for op, stages in _stages(division).items():
            place = PLACE.of(op.attributes)
            if place is not None:
                found[place] = stages
        return StagesOfOps(found, _homes(division))

    def sent(self, function: FuncOp) -> Iterator[tuple[SSAValue, Use]]:
        """
        Yields the values of the sequential program's entry function that are sent to
        another stage, once for each, with a use there.
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


def _homes(division: DividedProgram) -> list[int]:
    homes, block = division.homes.arguments, division.structure.function.body.block
    return [homes[arg] for arg in block.args]


def _sent(
    function: FuncOp,
    stages: Mapping[Operation, frozenset[int]],
    arguments: Sequence[int],
) -> Iterator[tuple[SSAValue, Use]]:
    homes: list[tuple[SSAValue, frozenset[int]]] = [
        *(
            (a, frozenset((s,)))
            for a, s in zip(function.body.block.args, arguments, strict=True)
        ),
        *((result, own) for op, own in stages.items() for result in op.results),
    ]
    for value, home in homes:
        reached = home
        for use in value.uses:
            new = stages.get(use.operation, reached) - reached
            if isinstance(value.type, TensorType):
                yield from ((value, use) for _ in new)
            reached = reached | new


def most_to_gain(division: DividedProgram, costs: MicroBatchCosts) -> float:
    """
    Returns the seconds that the sends of a divided program cost more in a step than if all
    that is sent were split over all devices of its rank: what other layouts can save.
    """
    function, batches = division.structure.function, division.structure.micro_batches
    total = 0.0
    for value, _ in _sent(function, _stages(division), _homes(division)):
        layout = layout_of(value) or Layout(costs.mesh.name)
        axes = *layout.split_axes, *layout.partial_axes
        times = batches if TIME_AXIS in axes else 1
        total += times * costs.saved_by_splitting(value.type, layout)
    return total
