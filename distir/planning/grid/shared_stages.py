"""
Compiled functions of pipeline stages for the simulator. Each function is compiled once
for all stages that do the same work, in any pipeline.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.device import ClusterOp
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.engine.compiled import CallStep, CompiledFunction
from distir.interpreters.simulator.engine.compiler import Compiler
from distir.interpreters.simulator.engine.device_map import UniformDeviceMap
from distir.interpreters.simulator.engine.summaries import Summaries
from distir.interpreters.simulator.profiles.files import load_profiles
from distir.interpreters.simulator.profiles.profile import Profile
from distir.planning.distribution.buckets import MessageSizes
from distir.planning.grid.contents import Contents, Numbers
from distir.planning.grid.entry_items import CompiledSite
from distir.planning.grid.overlapped_stages import OverlappedStages
from distir.sharding.exchanges import exchanged_axes
from distir.sharding.mesh import Mesh
from distir.transforms.bucketing import CollectiveBucketer
from distir.transforms.pipelines.entry import stage_function
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.functions import StageOps
from distir.transforms.pipelines.structure import Structure
from distir.transforms.resharding import ReshardLowering


@dataclass(frozen=True)
class SharedFunction:
    """
    A compiled function of stages that do the same work.

    - `compiled`: the function, compiled for the simulator;
    - `axes`: the groups of mesh axes along which the function communicates;
    - `numbered`: whether the function takes the index of the micro-batch as an argument.
    """

    compiled: CompiledFunction
    axes: frozenset[tuple[str, ...]]
    numbered: bool


class SharedStages:
    """
    The compiled functions that all pipelines on the same meshes share, including
    pipelines of different programs. Functions with equal contents (`Contents`) are
    compiled and summarised once.

    - `profiles`: measured speeds of the cluster's devices;
    - `buckets`: whether collectives of neighbouring tensors are merged into one
      message;
    - `overlaps`: whether all-to-alls of experts overlap computation.

    Raises NotUniform if the devices of a mesh differ.
    """

    def __init__(
        self,
        meshes: Sequence[Mesh],
        cluster: ClusterOp,
        profiles: Sequence[Profile] = (),
        buckets: bool = False,
        overlaps: bool = False,
    ):
        known = {mesh.name: mesh for mesh in meshes}
        hardware = Hardware.of(cluster, load_profiles(profiles, cluster))
        self.device_map = UniformDeviceMap(known, list(known), hardware)
        self.compiler = Compiler({}, self.device_map)
        self.lowering = ReshardLowering(known)
        self.bucketer: CollectiveBucketer | None = None
        if buckets:
            limit = MessageSizes(Hardware.of(cluster), known).limit
            self.bucketer = CollectiveBucketer(known, limit)
        self.overlapped = OverlappedStages() if overlaps else None
        self.joined: dict[tuple[CompiledFunction, ...], CompiledFunction] = {}
        """The functions that do the work of a forward and a backward function."""
        self.summaries = Summaries()
        self.numbers = Numbers()
        self.functions: dict[Hashable, SharedFunction] = {}
        self.callees: dict[tuple[int, str], CompiledFunction] = {}
        """
        The compiled functions that stages call, by their content ids (`Contents`) and
        meshes.
        """
        self.callee_numbers: dict[CompiledFunction, int] = {}
        """The content ids (`Contents`) of the functions in `callees`."""


class Compilation:
    """
    The state that the functions of one pipeline share while they are compiled. `before`
    is the compilation of the same program for another number of micro-batches; all
    parts that do not depend on that number are copied from it.
    """

    def __init__(
        self,
        structure: Structure,
        fold: Fold,
        shared: SharedStages,
        before: Compilation | None = None,
    ):
        self.structure = structure
        self.fold = fold
        self.shared = shared
        self.device_map = shared.device_map
        self.compiler = shared.compiler.of(fold.made)
        known = before.contents if before else None
        self.contents = Contents(structure, fold, shared.numbers, known)
        self._lowered: set[str] = set()
        self.kept: list[object] = []
        """
        The owners of values and types. Values and types are identified by their Python
        ids and so must stay alive.
        """

    def stage(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> SharedFunction:
        """
        Returns the compiled function of the ops in `group` on mesh `mesh`. The function
        adds its terms to the running sums `added`. Raises DistIRError if the function
        cannot be compiled.
        """
        fold = self.fold
        function, made = stage_function(self.structure, fold, group, mesh, added)
        self._prepare_callees(made)
        compiled = self._compiled(made)
        compiled.mesh = self.device_map.index[mesh]
        steps = compiled.steps + [
            step for _, callee in self.called(compiled) for step in callee.steps
        ]
        axes = {
            op.axis_names if isinstance(op, CollectiveOp) else exchanged_axes(op)
            for op in (step.op for step in steps)
        } - {()}
        return SharedFunction(compiled, frozenset(axes), function.numbered)

    def prepare(self, op: Operation) -> None:
        """
        Compiles the function that `op` calls, and all functions called by that
        function, unless they are compiled already. Does nothing if `op` is not a call.
        Raises DistIRError if a function cannot be compiled.
        """
        if isinstance(op, CallOp):
            self._prepare(op.callee.string_value())

    def _prepare(self, name: str) -> None:
        if name in self._lowered:
            return
        self._lowered.add(name)
        number, mesh = self._number(name), self.fold.mesh_of(name)
        function, shared = self.fold.made[name], self.shared
        known = shared.callees.get((number, mesh))
        if known is not None:
            self.compiler.take(function, known)
            return
        self._prepare_callees(function)
        compiled = self._compiled(function)
        shared.callees[number, mesh] = compiled
        shared.callee_numbers[compiled] = number

    def _prepare_callees(self, function: FuncOp) -> None:
        for op in function.body.block.ops:
            self.prepare(op)

    def _compiled(self, function: FuncOp) -> CompiledFunction:
        """Compiles a function. All functions that it calls must have been compiled."""
        shared = self.shared
        shared.lowering.lower(function)
        if shared.overlapped is not None:
            shared.overlapped.place(function)
        if shared.bucketer is not None:
            shared.bucketer.bucket(function)
        compiled = self.compiler.compile(function)
        if shared.overlapped is not None:
            shared.overlapped.bodies[compiled] = function
        return compiled

    def joined(self, pair: tuple[CompiledSite, CompiledSite]) -> CompiledSite:
        """
        Returns the use of a function that computes the function of a forward call
        beside the function of a backward call. Both are compiled for one mesh.
        """
        shared, callees = self.shared, (pair[0].callee, pair[1].callee)
        if callees not in shared.joined:
            assert shared.overlapped is not None
            name = f"{callees[0].name}_{callees[1].name}"
            function = shared.overlapped.joined(callees, name)
            if shared.bucketer is not None:
                shared.bucketer.bucket(function)
            compiled = shared.compiler.of({name: function}).compile(function)
            compiled.mesh = callees[0].mesh
            shared.overlapped.bodies[compiled] = function
            shared.joined[callees] = compiled
        compiled = shared.joined[callees]
        op = CallOp.create(properties={"callee": SymbolRefAttr(compiled.name)})
        return CompiledSite(op, compiled, pair[0].mesh)

    def _number(self, name: str) -> int:
        """
        Returns the content id of function `name`; functions with equal ids do the same
        work in one micro-batch.
        """
        return self.contents.function(self.fold.origin(name))

    def called(
        self, compiled: CompiledFunction
    ) -> Iterator[tuple[int, CompiledFunction]]:
        """
        Yields the functions that `compiled` calls, directly or through functions that
        it calls, each with its content id. The id is equal for functions that do the
        same work.
        """
        for callee in dict.fromkeys(
            [s.callee for s in compiled.steps if isinstance(s, CallStep)]
        ):
            yield self.shared.callee_numbers[callee], callee
            yield from self.called(callee)
