"""The program that runs stages in the order of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import FunctionType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from distir.pipelining import Action, Phase, Schedule, global_steps
from distir.program import return_op
from distir.sharding.mesh import Mesh
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.functions import (
    StageFunction,
    StageFunctionBuilder,
    StageOps,
)
from distir.transforms.pipelines.homes import Homes
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.over_time import over_time
from distir.transforms.pipelines.structure import Structure
from distir.transforms.pipelines.values import MicroBatchValues

Groups = Mapping[tuple[int, Phase], StageOps]


class Emitter:
    """
    Builds the new entry function.

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
        *,
        asynchronous: bool,
    ):
        self.structure = structure
        self.fold = fold
        self.groups = groups
        self.homes = homes
        self.meshes = meshes
        self.values = MicroBatchValues(structure, fold, asynchronous=asynchronous)
        self._functions: dict[tuple[StageOps, tuple[SSAValue, ...]], StageFunction] = {}
        # Per function its operands that are the same for all micro-batches.
        self._common: dict[StageFunction, list[SSAValue | None]] = {}
        self._consumers = self._find_consumers()

    def run(self, schedule: Schedule) -> FuncOp:
        """The entry function that follows the schedule."""
        self._add_arguments()
        if self.values.asynchronous:
            self._send_shared()
        waiting: list[Action] = []
        for step in global_steps(schedule):
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
        return self._function()

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
        block = self.values.block = Block(arg_types=types)
        for old, new, mesh in zip(args, block.args, homes, strict=True):
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
        operands = self._operands(function, number, mesh)
        operands += [sums[v] for v in added]
        if function.numbered:
            operands.append(values.number(number, mesh))
        results = [*group.kept, *group.accumulated]
        types = [self.fold.type(v.type, mesh) for v in results]
        # As `CallOp(...)`, which takes its time with hundreds of operands.
        call = CallOp.create(
            operands=operands,
            result_types=types,
            properties={"callee": function.symbol},
        )
        values.block.add_op(call)
        for old, new in zip(group.kept, call.results, strict=False):
            values.store(old, number, mesh, new)
        for old, new in zip(
            group.accumulated, call.results[len(group.kept) :], strict=True
        ):
            new.name_hint = old.name_hint
            sums[old] = new

    def _pass_on(self, action: Action) -> None:
        """Sends what an action gives to every stage that needs it."""
        for value in self.groups[action.stage, action.phase].passed:
            for mesh in self._consumers[value]:
                self.values.find(value, action.micro_batch, mesh)

    def _operands(
        self, function: StageFunction, number: int, mesh: str
    ) -> list[SSAValue]:
        """What a function's inputs are for a micro-batch."""
        find = self.values.find
        common = self._common.get(function)
        if common is not None:
            return [
                find(v, number, mesh) if same is None else same
                for v, same in zip(function.inputs, common, strict=True)
            ]
        found = [find(v, number, mesh) for v in function.inputs]
        self._common[function] = [
            new if self._is_common(v) else None
            for v, new in zip(function.inputs, found, strict=True)
        ]
        return found

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
            name = group.name if not added else f"{group.name}_accumulate"
            name = self.fold.free_name(name)
            builder = StageFunctionBuilder(
                self.structure, self.fold, group, self._mesh(group.stage), added
            )
            function, self._functions[key] = builder.build(name)
            self.fold.add(function)
        return self._functions[key]

    def _function(self) -> FuncOp:
        old, block = self.structure.function, self.values.block
        results = [
            self.values.find(v, None, self.values.home(v) or self._mesh(0))
            for v in return_op(old).operands
        ]
        block.add_op(ReturnOp(*results))
        function = FuncOp(
            old.sym_name.data,
            FunctionType.from_lists(
                [a.type for a in block.args], [v.type for v in results]
            ),
            Region(block),
            old.sym_visibility,
        )
        function.arg_attrs, function.res_attrs = old.arg_attrs, old.res_attrs
        function.attributes.update(old.attributes)
        return function
