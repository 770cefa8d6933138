"""The program that runs stages in the order of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Operation, SSAValue

from distir.pipelining import Action, Phase
from distir.program import return_op
from distir.sharding.mesh import Mesh
from distir.transforms.pipelines.entry import Entry
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.functions import StageFunction, StageOps
from distir.transforms.pipelines.homes import Homes
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.over_time import over_time
from distir.transforms.pipelines.structure import Structure
from distir.transforms.pipelines.values import MicroBatchValues

Groups = Mapping[tuple[int, Phase], StageOps]


class Emitter:
    """
    Builds the new entry function, step by step in `entry`.

    - `structure`, `fold`: the program, and what becomes of it for one micro-batch;
    - `groups`: by stage and phase; `homes`: where everything else is;
    - `meshes`: of each stage;
    - `asynchronous`: whether sends leave the devices free to compute meanwhile.
    """

    def __init__(
        self,
        structure: Structure,
        fold: Fold,
        groups: Groups,
        homes: Homes,
        meshes: Sequence[Mesh],
        entry: Entry,
        *,
        asynchronous: bool,
    ):
        self.structure = structure
        self.fold = fold
        self.groups = groups
        self.homes = homes
        self.meshes = meshes
        self.entry = entry
        self.values = MicroBatchValues(
            structure, fold, entry, asynchronous=asynchronous
        )
        self._functions: dict[tuple[StageOps, tuple[SSAValue, ...]], StageFunction] = {}
        # Per function its operands that are the same for all micro-batches, and the other
        # inputs.
        self._common: dict[
            StageFunction, tuple[list[SSAValue | None], list[SSAValue]]
        ] = {}
        self._consumers = self._find_consumers()

    def run(self, steps: Sequence[Sequence[Action]]) -> list[SSAValue]:
        """
        Builds what takes the actions of a schedule in these steps; gives the values that it
        returns.
        """
        self._add_arguments()
        if self.values.asynchronous:
            self._send_shared()
        waiting: list[Action] = []
        for step in steps:
            # A send that blocks goes between the steps, where both of its devices are
            # free; any other one as soon as it can, to be under way for longest.
            for action in waiting:
                self._pass_on(action)
            waiting = []
            for action in step:
                if (action.stage, action.phase) in self.groups:
                    self._action(action)
                    if self.values.asynchronous:
                        self._pass_on(action)
                    else:
                        waiting.append(action)
        for op in self.structure.ops:
            if self.structure.kinds.get(op) is Kind.AFTER:
                self.values.compute_whole(op, self._mesh(self.homes.after[op]))
        return [
            self.values.find(v, None, self.values.home(v) or self._mesh(0))
            for v in return_op(self.structure.function).operands
        ]

    def _mesh(self, stage: int) -> str:
        return self.meshes[stage].name

    def _find_consumers(self) -> dict[SSAValue, dict[str, None]]:
        """The meshes on which stages need a value that another one passes on."""
        found: dict[SSAValue, dict[str, None]] = {}
        for group in self.groups.values():
            for op in group.ops:
                for value in op.operands:
                    found.setdefault(value, {})[self._mesh(group.stage)] = None
        return found

    def _add_arguments(self) -> None:
        args = self.structure.function.body.block.args
        homes = [self._mesh(self.homes.arguments[arg]) for arg in args]
        types = [
            self.fold.whole_type(a.type, m) for a, m in zip(args, homes, strict=True)
        ]
        made = self.entry.arguments(types)
        for old, new, mesh in zip(args, made, homes, strict=True):
            self.values.store(old, None, mesh, new)

    def _send_shared(self) -> None:
        """
        Sends arguments that other stages need too, such as tied weights, before their own
        stage is busy: it runs ahead of the others, which would wait for a later send.
        """
        for value, meshes in self._consumers.items():
            pending = [value] if self._is_common(value) else []
            while pending:
                current = pending.pop()
                if isinstance(current.owner, Operation):
                    pending += current.owner.operands
                    continue
                for mesh in meshes:
                    self.values.find(current, None, mesh)

    def _action(self, action: Action) -> None:
        """Calls the function of a stage and phase for one micro-batch."""
        group = self.groups[action.stage, action.phase]
        mesh, number = self._mesh(action.stage), action.micro_batch
        values, sums = self.values, self.values.sums
        added = tuple(v for v in group.accumulated if v in sums)
        function = self._stage_function(group, added)
        common, own = self._operands(function, number, mesh)
        own += [sums[v] for v in added]
        if function.numbered:
            own.append(values.number(number, mesh))
        returned = [*group.kept, *group.accumulated]
        types = [self.fold.type(v.type, mesh) for v in returned]
        results = self.entry.call(function, common, own, types)
        for old, new in zip(group.kept, results, strict=False):
            values.store(old, number, mesh, new)
        for old, new in zip(group.accumulated, results[len(group.kept) :], strict=True):
            new.name_hint = old.name_hint
            sums[old] = new

    def _pass_on(self, action: Action) -> None:
        """Sends what an action gives to every stage that needs it."""
        for value in self.groups[action.stage, action.phase].passed:
            for mesh in self._consumers[value]:
                self.values.find(value, action.micro_batch, mesh)

    def _operands(
        self, function: StageFunction, number: int, mesh: str
    ) -> tuple[list[SSAValue | None], list[SSAValue]]:
        """What a function's inputs are for all micro-batches, and for one (see `Entry`)."""
        find = self.values.find
        known = self._common.get(function)
        if known is not None:
            common, others = known
            return common, [find(v, number, mesh) for v in others]
        found = [find(v, number, mesh) for v in function.inputs]
        is_common = [self._is_common(v) for v in function.inputs]
        common = [
            new if same else None for new, same in zip(found, is_common, strict=True)
        ]
        others = [
            v for v, same in zip(function.inputs, common, strict=True) if same is None
        ]
        self._common[function] = common, others
        own = [new for new, same in zip(found, common, strict=True) if same is None]
        return common, own

    def _is_common(self, value: SSAValue) -> bool:
        """Whether a value is there before all micro-batches and the same for them."""
        owner = value.owner
        before = (
            not isinstance(owner, Operation)
            or self.structure.kinds[owner] is Kind.BEFORE
        )
        return before and over_time(value).kind == "whole"

    def _stage_function(
        self, group: StageOps, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        key = (group, added)
        if key not in self._functions:
            mesh = self._mesh(group.stage)
            self._functions[key] = self.entry.stage_function(group, mesh, added)
        return self._functions[key]
