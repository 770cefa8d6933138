"""Chooses the stages of arguments and of ops that run after the micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.dialects.dist import ReshardOp
from distir.dialects.dist_attributes import STAGE
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.program import (
    argument_attributes,
    gradients_of_results,
    parameters_of_states,
    return_op,
    set_argument_attributes,
    updated_arguments,
)
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.structure import Structure


def stages_reached(
    structure: Structure, ops: Iterable[Operation], stages: Mapping[Operation, int]
) -> dict[SSAValue, set[int]]:
    """
    Returns, for each value, the stages on which `ops` need the value, directly or
    through ops that run before the micro-batches. `stages` has the stage of each of
    `ops`.
    """
    found: dict[SSAValue, set[int]] = {}
    given = set(ops)
    for op in reversed(structure.ops):
        if op in given:
            reached = {stages[op]}
        elif structure.kinds.get(op) in (Kind.BEFORE, Kind.DIVIDE):
            reached = set[int]().union(*(found.get(r, ()) for r in op.results))
        else:
            continue
        if reached:
            for value in op.operands:
                found.setdefault(value, set()).update(reached)
    return found


def take_requested_stages(structure: Structure) -> dict[SSAValue, int]:
    """
    Returns the requested stages of arguments (`dist.stage`), and removes the requests.
    """
    attributes = argument_attributes(structure.function)
    args = structure.function.body.block.args
    found: dict[SSAValue, int] = {}
    for arg, own in zip(args, attributes, strict=True):
        if (stage := STAGE.of(own)) is not None:
            found[arg] = stage
    if found:
        for own in attributes:
            own.pop(STAGE, None)
        set_argument_attributes(structure.function, attributes)
    return found


def ranges_of_starts(
    structure: Structure, requested: Mapping[SSAValue, int], count: int
) -> list[tuple[int, int]]:
    """
    Returns a pair for each of the stages 1, 2, ...: the first and the last position
    among the forward ops at which the stage may begin. `count` is the number of stages,
    and `requested` has the stages that were requested for arguments. The first op that
    needs such an argument must be on the argument's stage. Raises DistIRError if a
    stage in `requested` does not exist.
    """
    for stage in requested.values():
        if not 0 <= stage < count:
            raise DistIRError(
                f"pipeline: an argument is asked to be on stage {stage} ({STAGE}), but the "
                f"schedule has {count} stages, which are numbered from 0; ask for one of them"
            )
    ops = structure.forward
    places = {op: i for i, op in enumerate(ops)}
    uses = stages_reached(structure, ops, places)
    first = [(requested[arg], min(uses[arg])) for arg in requested if arg in uses]
    return [
        (
            max((place + 1 for stage, place in first if stage < start), default=1),
            min((p for stage, p in first if stage >= start), default=len(ops) - 1),
        )
        for start in range(1, count)
    ]


class AssignedStages:
    """
    The stages of arguments and of ops that run after the micro-batches.

    - `arguments`: the stage of each argument. It is the first stage that needs the
      argument in its forward pass or, if there is none, in its backward pass. A state has
      the stage of its parameter. Results and gradients of results are on the last stage.
      An argument that only ops after the micro-batches need has the stage of the first
      of these ops. An argument that no op needs has the stage that computes its update.
    - `after`: the stage of each op of kind `AFTER`. An update runs on the stage of its
      parameter, which is its first operand (or a reshard of it). Any other op runs on
      the stage of its largest operand (ties: the first), so that small operands are
      sent and not gradients. If no operand has a stage, as in a reshard of an optimizer
      state, the op runs on the stage that uses its result.
    """

    def __init__(self, structure: Structure, stages: Mapping[Operation, int]):
        self.arguments: dict[SSAValue, int] = {}
        self.after: dict[Operation, int] = {}
        self._stages = stages
        block = structure.function.body.block
        for index in gradients_of_results(structure.function).values():
            self.arguments[block.args[index]] = max(stages.values())
        for ops in (structure.forward, structure.backward):
            reached = stages_reached(structure, ops, stages)
            for arg in block.args:
                if arg in reached:
                    self.arguments.setdefault(arg, min(reached[arg]))
        for state, parameter in parameters_of_states(structure.function).items():
            stage = self.arguments.get(block.args[parameter])
            if stage is not None:
                self.arguments.setdefault(block.args[state], stage)
        after = [op for op in structure.ops if structure.kinds.get(op) is Kind.AFTER]
        for op in after:
            places = self._of_operands(op)
            if not (op.operands and _is_argument(op.operands[0])):
                sized = zip(places, op.operands, strict=True)
                known = [(-_size(v), place) for place, v in sized if place is not None]
                places = [place for _, place in sorted(known)]
            self._place(op, places)
        for op in reversed(after):
            if op not in self.after:
                users = (
                    self.after.get(u.operation) for r in op.results for u in r.uses
                )
                self._place(op, [*self._of_operands(op), *users, 0])
        returned = return_op(structure.function).operands
        for result, argument in updated_arguments(structure.function).items():
            stage = self._of(returned[result])
            if stage is not None:
                self.arguments.setdefault(block.args[argument], stage)
        for arg in block.args:
            self.arguments.setdefault(arg, 0)

    def _place(self, op: Operation, stages: Iterable[int | None]) -> None:
        """
        Places `op` on the first entry of `stages` that is not None. Does nothing if all
        entries are None.
        """
        stage = next((s for s in stages if s is not None), None)
        if stage is not None:
            self.after[op] = stage
            for value in op.operands:
                if type(value) is BlockArgument:
                    self.arguments.setdefault(value, stage)

    def _of_operands(self, op: Operation) -> list[int | None]:
        return [self._of(v) for v in op.operands]

    def _of(self, value: SSAValue) -> int | None:
        # Not `isinstance`, which is slow where the answer is no.
        if type(value) is not OpResult:
            return self.arguments.get(value)
        return self._stages.get(value.op, self.after.get(value.op))


def _is_argument(value: SSAValue) -> bool:
    """Whether `value` is an argument, or a reshard of an argument."""
    while type(owner := value.owner) is ReshardOp:
        value = owner.source
    return type(value) is BlockArgument


def _size(value: SSAValue) -> int:
    """Returns the number of array elements of a tensor."""
    return prod(shape_of(value.type))
