"""
Divides a program into the stages of a pipeline, before a schedule is chosen. The result
is a group of ops for each stage and phase. Groups that do the same work, on different
meshes and values, share a function. All groups belong to one program. To compare the
ops of groups, `Structure.signature` has ids of ops within a program, and
`distir.planning.grid.contents` compares ops of several programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.device import MeshOp
from distir.dialects.dist import ReshardOp
from distir.dialects.dist_attributes import RESHARD_EARLY
from distir.pipelining import Action, Phase, PipelineSchedule
from distir.program import argument_names, made_with
from distir.sharding.mesh import Mesh
from distir.sharding.placement import PartialPlacement, SplitPlacement
from distir.sharding.rule import Rule, rule_for
from distir.transforms.pipelines.assigned_stages import AssignedStages
from distir.transforms.pipelines.emit import Emitter, Groups
from distir.transforms.pipelines.entry import Entry, V
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.functions import StageOps, needed_inside
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.outputs import bring_outputs
from distir.transforms.pipelines.over_time import Axes, FoldedTypes, over_time
from distir.transforms.pipelines.stages import StagePlacer, forward_stages
from distir.transforms.pipelines.structure import Structure


@dataclass(frozen=True)
class GroupContent:
    """
    The content of a group of ops, for comparisons. Two groups have the same function,
    apart from its mesh, if their `ops` are pairwise equal and their `wiring`, the
    connections between the ops, is equal. `inputs` are the values that the function
    takes, in the order of its arguments.
    """

    ops: tuple[Operation, ...]
    wiring: tuple[tuple[int, ...], ...]
    inputs: tuple[SSAValue, ...]


class GroupContents:
    """
    The contents of the groups of a divided program. The content of a group is computed
    only once.
    """

    def __init__(self, structure: Structure):
        self._structure = structure
        self._known: dict[StageOps, GroupContent] = {}

    def of(self, group: StageOps) -> GroupContent:
        """Returns the content of `group`, with its inputs."""
        if group not in self._known:
            self._known[group] = self._find(group)
        return self._known[group]

    def _find(self, group: StageOps) -> GroupContent:
        own, found = set(group.ops), list[Operation]()
        numbers: dict[SSAValue, int] = {}
        inputs: list[SSAValue] = []
        wiring: list[tuple[int, ...]] = []

        def number(value: SSAValue) -> int:
            if value not in numbers:
                owner = value.owner
                needed = None
                if not (isinstance(owner, Operation) and owner in own):
                    needed = needed_inside(value, self._structure)
                if needed is None:
                    inputs.append(value)
                    numbers[value] = len(numbers)
                else:
                    assert isinstance(value, OpResult)
                    owners = (v.owner for v in (value, *value.op.operands))
                    add(needed, *[o for o in owners if isinstance(o, Operation)])
            return numbers[value]

        def add(needed: Sequence[SSAValue], *what: Operation) -> None:
            wiring.append((len(what), *[number(v) for v in needed]))
            found.extend(what)
            for result in what[0].results:
                numbers[result] = len(numbers)

        for op in group.ops:
            add(op.operands, op)
        outputs = (group.kept, group.accumulated)
        wiring += [tuple([numbers[v] for v in values]) for values in outputs]
        return GroupContent(tuple(found), tuple(wiring), tuple(inputs))


NAMES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.BACKWARD_INPUT: "backward_input",
    Phase.BACKWARD_WEIGHT: "backward_weight",
}


def stage_groups(
    structure: Structure, stages: Mapping[Operation, int], schedule: PipelineSchedule
) -> dict[tuple[int, Phase], StageOps]:
    """
    Returns the group of ops for each stage and phase of `schedule`. `stages` has the
    stage of each op that runs once per micro-batch.
    """
    groups: dict[tuple[int, Phase], StageOps] = {}
    for stage, phase in schedule.stage_phases:
        source = structure.forward if phase is Phase.FORWARD else structure.backward
        ops = [op for op in source if stages[op] == stage]
        if phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT):
            first = _needed_by_others(ops, structure)
            wanted = phase is Phase.BACKWARD_INPUT
            ops = [op for op in ops if (op in first) is wanted]
        if ops:
            name = NAMES[phase]
            if schedule.stages > 1:
                name = f"stage{stage}_{name}"
            groups[stage, phase] = StageOps.of(name, stage, ops, structure)
    return groups


def _needed_by_others(ops: Sequence[Operation], structure: Structure) -> set[Operation]:
    """
    Returns the backward ops of a stage on which gradients for other stages depend. If
    the stage sends no gradients, returns all backward ops of the stage except for ops
    that only compute gradients of weights.
    """
    found = set(structure.backward) - set(ops)
    own: set[Operation] = set()
    for op in reversed(ops):
        if any(u.operation in found for r in op.results for u in r.uses):
            found.add(op)
            own.add(op)
    if own:
        return own
    wanted = [
        op
        for op in ops
        if any(not isinstance(over_time(r), PartialPlacement) for r in op.results)
    ]
    return set(wanted) or set(ops)


@dataclass(frozen=True)
class DividedProgram:
    """
    The analysis of a program before `pipeline` builds the pipeline. The analysis
    depends on the number of stages. It depends on the number of micro-batches only if
    the structure does (`Structure.is_for_one_count`).

    - `module`: the program;
    - `structure`: the analysed entry function of the program;
    - `stages`: the stage of each op that runs once per micro-batch;
    - `assigned`: the stages of arguments and of all other ops;
    - `group_contents`: the contents by which groups are compared;
    - `types`: the types of the program's values on stages;
    - `groups`: the groups of ops that were already computed, by the phases of their
      schedule.
    """

    module: ModuleOp
    structure: Structure
    stages: Mapping[Operation, int]
    assigned: AssignedStages
    group_contents: GroupContents
    types: FoldedTypes
    groups: dict[tuple[tuple[int, Phase], ...], Groups] = field(
        default_factory=dict[tuple[tuple[int, Phase], ...], Groups]
    )

    @staticmethod
    def of(
        module: ModuleOp,
        structure: Structure,
        schedule: PipelineSchedule,
        request: Sequence[str],
        shapes: Sequence[Mapping[str, int]] = (),
    ) -> DividedProgram:
        """
        Returns the division of a program into the stages of `schedule`. `request` is
        empty, `uniform`, or a list of the scopes with which stages begin. `shapes` has
        the sizes of the mesh axes for each rank; it is empty if all ranks have the
        sizes of the program's mesh. Raises DistIRError if the program cannot be divided
        in this way.
        """
        mesh = structure.mesh
        axes = {
            stage_mesh(mesh, rank, len(shapes)): _several(mesh.with_sizes(sizes))
            for rank, sizes in enumerate(shapes)
        }
        meshes = stage_meshes(structure, schedule, shapes)
        forward = forward_stages(structure, meshes, request)
        bring_outputs(structure, forward)
        placer = StagePlacer(structure, forward)
        _postpone(structure, placer)
        return DividedProgram(
            module,
            structure,
            placer.stages,
            AssignedStages(structure, placer.stages),
            GroupContents(structure),
            FoldedTypes(mesh, axes),
        )

    def argument_stages(self) -> dict[str, int]:
        """Returns the stage of each argument of the program, by name."""
        function = self.structure.function
        args, names = function.body.block.args, argument_names(function)
        return {
            name: self.assigned.arguments[arg]
            for arg, name in zip(args, names, strict=True)
        }

    def with_micro_batches(self, count: int) -> DividedProgram:
        """Returns the division of the same program for `count` micro-batches."""
        structure = copy(self.structure)
        structure.mesh = structure.mesh.with_size(structure.mesh.axes[0][0], count)
        types = FoldedTypes(structure.mesh, self.types.shapes, self.types)
        return replace(self, structure=structure, types=types)

    def meshes(self, ranks: int) -> list[MeshOp]:
        """
        Returns a mesh for each pipeline rank. The meshes cover consecutive devices.
        """
        mesh = self.structure.mesh
        (old,) = (op for op in self.module.body.block.ops if isinstance(op, MeshOp))
        cluster = old.cluster.string_value()
        own, found, first = _several(mesh), list[MeshOp](), 0
        for rank in range(ranks):
            name = stage_mesh(mesh, rank, ranks)
            axes = self.types.shapes.get(name, own)
            end = first + prod(size for _, size in axes)
            found.append(MeshOp(name, cluster, axes, range(first, end)))
            first = end
        return found

    def fold(
        self,
        meshes: Sequence[MeshOp],
        rule_of_part: Callable[[Operation], Rule] = rule_for,
    ) -> Fold:
        """
        Returns the `Fold` that turns the program into a program for a single
        micro-batch. `meshes` are the meshes of the pipeline ranks. `rule_of_part`
        returns the sharding rule of an op of the new program.
        """
        structure = self.structure
        name = structure.function.sym_name.data
        stages = [Mesh.of(op) for op in meshes]
        return Fold(
            structure.functions,
            name,
            structure.mesh,
            stages,
            self.types,
            structure.rule,
            rule_of_part,
        )

    def emit(
        self,
        schedule: PipelineSchedule,
        steps: Sequence[Sequence[Action]],
        fold: Fold,
        entry: Entry[V],
        *,
        asynchronous: bool,
    ) -> list[V]:
        """
        Adds to `entry` the calls of stage functions in the order of a schedule. `steps`
        are the actions of the schedule in a global order. `asynchronous` tells whether
        devices can compute while they send. Returns the results of the pipeline.
        """
        phases = schedule.stage_phases
        if phases not in self.groups:
            self.groups[phases] = stage_groups(self.structure, self.stages, schedule)
        emitter = Emitter(
            self.structure,
            fold,
            self.groups[phases],
            self.assigned,
            [fold.stages[schedule.stage_rank(s)] for s in range(schedule.stages)],
            entry,
            asynchronous=asynchronous,
        )
        return emitter.run(steps)

    def program(
        self, meshes: Sequence[MeshOp], functions: Sequence[FuncOp]
    ) -> list[Operation]:
        """
        Returns the ops of a module in which `meshes` and `functions` replace the meshes
        and functions of the program. All other ops are copied.
        """
        ops: list[Operation] = []
        for op in self.module.body.block.ops:
            if isinstance(op, MeshOp):
                ops += meshes
            elif op is self.structure.function:
                ops += functions
            elif not isinstance(op, FuncOp):
                ops.append(op.clone())
        return ops


def stage_mesh(mesh: Mesh, rank: int, ranks: int) -> str:
    """
    Returns the name of the mesh of the pipeline rank `rank`. It is the name of `mesh`
    if there is only one rank.
    """
    return mesh.name if ranks == 1 else f"stage{rank}"


def stage_meshes(
    structure: Structure,
    schedule: PipelineSchedule,
    shapes: Sequence[Mapping[str, int]],
) -> list[Mesh]:
    """
    Returns, for each stage of `schedule`, the program's mesh with the axis sizes of the
    stage's rank. `shapes` has these sizes for each rank, and is empty if all ranks have
    the sizes of the program's mesh.
    """
    mesh = structure.mesh
    sized = [mesh.with_sizes(sizes) for sizes in shapes] or [mesh] * schedule.ranks
    return [sized[schedule.stage_rank(s)] for s in range(schedule.stages)]


def _several(mesh: Mesh) -> Axes:
    """
    Returns the axes of a mesh with more than one device, without the micro-batch axis.
    """
    return tuple((axis, size) for axis, size in mesh.axes[1:] if size > 1)


def _postpone(structure: Structure, placer: StagePlacer) -> None:
    """
    Moves linear ops on gradients behind the micro-batches, in place. There they run
    once, on the sum, instead of once for each micro-batch. An op must have a single
    partial operand, or partial operands from several stages. In the second case (tied
    weights) the move saves sends of gradients for each micro-batch. A cast does not
    move, because the sum should be computed in the element type of its result. An op on
    a value that is scattered before the sum does not move either.
    """
    kinds = structure.kinds
    for op in list(structure.backward):
        if isinstance(op, ReshardOp) and RESHARD_EARLY in op.attributes:
            _scatter_terms(op, structure, placer)
    for op in reversed(structure.backward):
        users = {u.operation for r in op.results for u in r.uses}
        if any(kinds.get(u, Kind.AFTER) is not Kind.AFTER for u in users):
            continue
        is_early = op.attributes.pop(RESHARD_EARLY, None) is not None
        if op.name == "onnx.Cast" or is_early:
            continue
        times = [over_time(v) for v in op.operands]
        partial = [isinstance(time, PartialPlacement) for time in times]
        if not any(partial) or any(isinstance(t, SplitPlacement) for t in times):
            continue
        if any(not isinstance(over_time(r), PartialPlacement) for r in op.results):
            continue
        stages = {
            placer.stages[v.owner]
            for v, is_partial in zip(op.operands, partial, strict=True)
            if is_partial and isinstance(v.owner, Operation)
        }
        if partial.count(True) == 1 or len(stages) > 1:
            kinds[op] = Kind.AFTER
            del placer.stages[op]
    structure.backward = [op for op in structure.backward if kinds[op] is Kind.EACH]


def _scatter_terms(op: ReshardOp, structure: Structure, placer: StagePlacer) -> None:
    """
    Replaces a reshard of a sum of gradients, requested before the end of the
    micro-batches, by a reshard of each term. This applies if the terms are computed on
    several stages (tied weights). Each term is scattered on its own stage. The parts
    are then summed and sent between stages only once.
    """
    pending = [op]
    while pending:
        reshard = pending.pop()
        add = reshard.source.owner
        if not isinstance(add, Operation) or add.name != "onnx.Add":
            continue
        owners = [v.owner for v in add.operands]
        stages = [placer.stages.get(o) for o in owners if isinstance(o, Operation)]
        is_sum = all(isinstance(over_time(v), PartialPlacement) for v in add.operands)
        if not is_sum or len(set(stages)) < 2 or not add.results[0].has_one_use():
            continue
        terms: list[ReshardOp] = []
        for value, stage in zip(add.operands, stages, strict=True):
            assert stage is not None
            term = ReshardOp(value, reshard.result.type)
            term.attributes.update(reshard.attributes)
            Rewriter.insert_op(term, InsertPoint.before(reshard))
            structure.kinds[term] = Kind.EACH
            placer.stages[term] = stage
            terms.append(term)
        total = made_with(add, [t.result for t in terms], [reshard.result.type])
        Rewriter.insert_op(total, InsertPoint.before(reshard))
        structure.kinds[total] = Kind.EACH
        placer.stages[total] = placer.stages[reshard]
        at = structure.backward.index(reshard)
        structure.backward[at : at + 1] = [*terms, total]
        structure.backward.remove(add)
        reshard.result.replace_all_uses_with(total.results[0])
        for gone in (reshard, add):
            del structure.kinds[gone], placer.stages[gone]
            Rewriter.erase_op(gone)
        pending += terms
