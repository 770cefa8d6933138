"""Builds the entry function, which calls stage functions in the order of a schedule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from xdsl.ir import Attribute, Operation, SSAValue

from distir.pipelining import Action, Phase
from distir.program import gradients_of_results, linked_arguments, return_op
from distir.sharding.mesh import Mesh
from distir.transforms.pipelines.assigned_stages import AssignedStages
from distir.transforms.pipelines.entry import Entry, V
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.functions import StageFunction, StageOps
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.structure import Structure
from distir.transforms.pipelines.values import MicroBatchValues

Groups = Mapping[tuple[int, Phase], StageOps]


@dataclass
class _Site(Generic[V]):
    """
    The calls of a stage function, one for each micro-batch.

    - `function`: the function;
    - `common`: one entry per input of the function: the operand if it is the same for all
      micro-batches, else None;
    - `own`: the values of the original program for the inputs that are None in
      `common`; `own_numbers` are their ids;
    - `returned`: the values of the original program that the function returns. First
      come the values of each micro-batch, with the ids `kept`, then the accumulated
      values;
    - `types`: the types of the returned values.
    """

    function: StageFunction
    common: list[V | None]
    own: list[SSAValue]
    own_numbers: list[int]
    returned: list[SSAValue]
    types: list[Attribute]
    kept: list[int]


class Emitter(Generic[V]):
    """
    Builds the new entry function, step by step, in `entry`.

    - `structure`: the original program;
    - `fold`: the values and ops of the program for one micro-batch;
    - `groups`: the ops of the program by stage and phase;
    - `assigned`: the stages of arguments and of ops that run after the micro-batches;
    - `meshes`: the mesh of each stage;
    - `asynchronous`: whether devices can compute while they send.
    """

    def __init__(
        self,
        structure: Structure,
        fold: Fold,
        groups: Groups,
        assigned: AssignedStages,
        meshes: Sequence[Mesh],
        entry: Entry[V],
        *,
        asynchronous: bool,
    ):
        self.structure = structure
        self.fold = fold
        self.groups = groups
        self.assigned = assigned
        self.meshes = meshes
        self.entry = entry
        self.values = MicroBatchValues(
            structure, fold, entry, asynchronous=asynchronous
        )
        # By stage, phase and the ids of the values that are added to.
        self._sites: dict[tuple[int, Phase, tuple[int, ...]], _Site[V]] = {}
        self._accumulated: dict[tuple[int, Phase], list[int]] = {}
        self._sends: dict[tuple[int, Phase], list[tuple[int, str, Attribute]]] = {}
        self._consumers = self._find_consumers()

    def run(self, steps: Sequence[Sequence[Action]]) -> list[V]:
        """
        Adds the calls for all actions of a schedule and returns the results of the
        pipeline. `steps` are the actions in a global order.
        """
        self._add_arguments()
        if self.values.asynchronous:
            self._send_shared()
        waiting: list[Action] = []
        for step in steps:
            # A blocking send goes between the steps, where both of its devices are free;
            # any other one starts as early as possible, to have the most time.
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
                self.values.compute_whole(op, self._mesh(self.assigned.after[op]))
        function = self.structure.function
        linked, arguments = linked_arguments(function), function.body.block.args
        # The caller computes the loss from all outputs: they are on the last stage.
        is_awaited = bool(gradients_of_results(function))
        found: list[V] = []
        for index, value in enumerate(return_op(function).operands):
            mesh = self.values.mesh_of(value) or self._mesh(0)
            if index in linked:  # an update or a gradient is sent to its argument
                mesh = self._mesh(self.assigned.arguments[arguments[linked[index]]])
            elif is_awaited:
                mesh = self.meshes[-1].name
            found.append(self.values.find(value, None, mesh))
        return found

    def _mesh(self, stage: int) -> str:
        return self.meshes[stage].name

    def _find_consumers(self) -> dict[SSAValue, dict[str, None]]:
        """
        Returns for each value the names of the meshes of the stages that use the value.
        """
        found: dict[SSAValue, dict[str, None]] = {}
        for group in self.groups.values():
            mesh = self._mesh(group.stage)
            for value in group.used:
                found.setdefault(value, {})[mesh] = None
        return found

    def _add_arguments(self) -> None:
        args = self.structure.function.body.block.args
        meshes = [self._mesh(self.assigned.arguments[arg]) for arg in args]
        types = [
            self.fold.whole_type(a.type, m) for a, m in zip(args, meshes, strict=True)
        ]
        made = self.entry.arguments(types)
        for old, new, mesh in zip(args, made, meshes, strict=True):
            self.values.store(old, None, mesh, new)

    def _send_shared(self) -> None:
        """
        Sends arguments that several stages need, such as tied weights, before all
        micro-batches. The stage that has such an argument runs ahead of the other
        stages, which would have to wait if the argument were sent later.
        """
        for value, meshes in self._consumers.items():
            if self.values.mesh_of(value) in meshes and len(meshes) == 1:
                continue  # it is already on the only mesh that needs it
            pending = [value] if self.structure.is_common(value) else []
            while pending:
                current = pending.pop()
                if isinstance(current.owner, Operation):
                    pending += current.owner.operands
                    continue
                for mesh in meshes:
                    self.values.find(current, None, mesh)

    def _action(self, action: Action) -> None:
        """Adds the call of a stage function for one micro-batch."""
        key, values = (action.stage, action.phase), self.values
        mesh, number = self._mesh(action.stage), action.micro_batch
        here, group = values.here(number, mesh), self.groups[key]
        # Phases of one stage may add to the same values.
        accumulated = self._accumulated.get(key)
        if accumulated is None:
            accumulated = [values.number_of(v) for v in group.accumulated]
            self._accumulated[key] = accumulated
        sums = values.sums
        added = tuple([n for n in accumulated if n in sums])
        site = self._sites.get((*key, added))
        if site is None:
            site, own = self._first_call(group, number, mesh, added)
            self._sites[*key, added] = site
        else:
            try:
                own = [here[n] for n in site.own_numbers]
            except KeyError:
                own = [values.find(v, number, mesh) for v in site.own]
        own += [sums[n] for n in added]
        if site.function.numbered:
            own.append(values.number(number, mesh))
        results = self.entry.call(
            site.function, site.common, own, site.returned, site.types
        )
        count = len(site.kept)
        here.update(zip(site.kept, results[:count], strict=True))
        sums.update(zip(accumulated, results[count:], strict=True))

    def _first_call(
        self, group: StageOps, number: int, mesh: str, added: Collection[int]
    ) -> tuple[_Site[V], list[V]]:
        """
        Returns a description of the calls of a stage function and, for micro-batch
        `number`, the operands that differ between micro-batches. `added` has the ids of
        the values that the function adds to running sums.
        """
        values, is_common = self.values, self.structure.is_common
        number_of = values.number_of
        sums = tuple([v for v in group.accumulated if number_of(v) in added])
        function = self.entry.stage_function(group, mesh, sums)
        inputs = [
            (v, values.find(v, number, mesh), is_common(v)) for v in function.inputs
        ]
        own = [v for v, _, same in inputs if not same]
        returned = [*group.kept, *group.accumulated]
        for value in group.kept:
            values.settle(value, mesh)
        site = _Site(
            function,
            [new if same else None for _, new, same in inputs],
            own,
            [number_of(v) for v in own],
            returned,
            [self.fold.type(v.type, mesh) for v in returned],
            [number_of(v) for v in group.kept],
        )
        return site, [new for _, new, same in inputs if not same]

    def _pass_on(self, action: Action) -> None:
        """Sends the results of an action to all other meshes that use these results."""
        key, batch = (action.stage, action.phase), action.micro_batch
        mesh = self._mesh(action.stage)
        values, here = self.values, self.values.here(batch, mesh)
        if key not in self._sends:
            fold = self.fold
            self._sends[key] = [
                (
                    values.number_of(value),
                    target,
                    fold.type(value.type, target),
                )
                for value in self.groups[key].passed
                for target in self._consumers[value]
                if target != mesh
            ]
        for number, target, type_ in self._sends[key]:
            there = values.here(batch, target)
            if number not in there:
                there[number] = self.entry.send(
                    here[number], type_, asynchronous=values.asynchronous
                )
