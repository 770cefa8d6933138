"""Chooses the layouts of grid plans, once for all plans that share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from distir.dialects.device import AxesAttr, MeshOp
from distir.dialects.dist import ReshardOp, layout_of
from distir.interpreters.simulator.engine.device_map import NotUniform
from distir.interpreters.simulator.profiles.profile import Profile
from distir.pipelining import ScheduleOptions
from distir.planning.distribution.distribute import (
    check_options,
    request_layouts,
    solve_layouts,
)
from distir.planning.distribution.meshes import cluster_in
from distir.planning.distribution.options import DistributionOptions
from distir.planning.grid.between import Between, Sizes
from distir.planning.grid.compiled_pipeline import PipelineSimulator
from distir.planning.grid.shared_stages import SharedStages
from distir.planning.layouts.fitted_plan import Step
from distir.planning.plans.plan import GridPlan
from distir.planning.plans.programs import trains
from distir.sharding.mesh import MESH, TIME_AXIS, Mesh
from distir.sharding.placement import REPLICATED, placement_in
from distir.sharding.verification import DistributionVerifier
from distir.transforms.partitioning import partition
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.pipeline import divided, schedule_for

_Kind = tuple[str, int | None]
"""A schedule: its name, and its stages per rank if they are given."""

SharedByMeshes = dict[tuple[object, ...], SharedStages]
"""
The compiled functions that pipelines share. The key holds the text of the cluster,
whether collectives are merged into buckets, and the meshes of the stages.
"""


class LayoutChooser:
    """
    Chooses the layouts of one plan after another. `program` is a function that returns
    the sequential program for a batch size. `profiles` hold measured speeds of the
    devices.

    Plans that differ only in the schedule and the number of micro-batches share their
    layouts if three conditions hold:

    - the number of micro-batches is a multiple of the first plan's number;
    - no value that all micro-batches share is communicated once per micro-batch. The
      cost of the chosen layouts then does not grow with the number of micro-batches,
      while the cost of other layouts may (`distir.sharding.prices`);
    - `verify-distribution` accepts the layouts for this number. A split that is illegal
      for the first number is also illegal for the multiples of the first number, but
      the opposite does not hold.

    Otherwise the plan's layouts are chosen separately. If plans also differ in the
    batch size, the layouts for a batch size between two others may follow from the
    layouts for these two (`Between`).
    """

    def __init__(
        self, program: Callable[[int], ModuleOp], profiles: Sequence[Profile] = ()
    ):
        self._program = program
        self._profiles = profiles
        self._chosen: ChosenProgram | None = None
        """The program with the layouts that were chosen last, and its plan."""
        self._stages: SharedByMeshes = {}
        self._kin: tuple[object, ...] = ()
        self._distributed: dict[int, ModuleOp] = {}
        """
        The distributed programs of plans that differ only in the batch size, by batch
        size.
        """
        self._sizes: dict[int, Sizes] = {}
        self._requested: tuple[object, ModuleOp] | None = None
        """The program with the requests of the last plan, and what they depend on."""
        self._betweens: dict[tuple[int, ...], Between] = {}

    @property
    def shared_stages(self) -> list[SharedStages]:
        """
        The compiled functions that the pipelines simulated so far share: one entry per
        combination of cluster, buckets and meshes of stages.
        """
        return [*self._stages.values()]

    def prepare(self, batches: Sequence[int]) -> None:
        """
        Compares the programs for the batch sizes `batches`, which are in ascending
        order. Layouts for a size in the middle may then follow from the layouts for the
        smallest and the largest size.
        """
        for batch in batches[1:-1]:
            self._known_between(batches[0], batch, batches[-1])

    def choose(self, plan: GridPlan, options: DistributionOptions) -> ChosenProgram:
        """
        Returns the program with the layouts for `plan`. `options` are the options of
        `distribute` for this plan. Raises DistIRError if the plan is not possible.
        """
        chosen = self._chosen
        if chosen is None or not chosen.is_for(plan) or not chosen.allows(plan.k):
            module = self._partitioned(plan, options)
            chosen = self._chosen = ChosenProgram(
                plan, module, self._stages, self._profiles
            )
        return chosen

    def _partitioned(self, plan: GridPlan, options: DistributionOptions) -> ModuleOp:
        key = (*plan.shared[1:], plan.k)
        if self._kin != key:
            self._kin, self._distributed = key, {}
        found = self._between(plan)
        if found is None:
            found = self._with_requests(plan, options)
            # A pipeline gathers at the end of a step here. `distribute` also tries the start.
            solve_layouts(found, options, gather_first=not plan.is_pipelined)
            partition(found)
            self._distributed[plan.batch] = found
        return found

    def _with_requests(self, plan: GridPlan, options: DistributionOptions) -> ModuleOp:
        """
        Returns a copy of the program for `plan` with the requests of `options`. The
        requests are the same for all ZeRO stages. The most recent training step is
        therefore kept and used again for a plan that differs only in its ZeRO stage.
        Raises DistIRError for options that contradict each other.
        """
        program = self._program(plan.batch)
        check_options(options, program)
        without = replace(options, zero=0, no_sync=False, offload_states=False)
        key = plan.batch, without
        if self._requested is not None and self._requested[0] == key:
            return self._requested[1].clone()
        module = program.clone()
        request_layouts(module, options)
        if trains(program):
            self._requested = key, module.clone()
        return module

    def _between(self, plan: GridPlan) -> ModuleOp | None:
        """
        Returns the distributed program for `plan`, derived from the programs for a
        smaller and a larger batch size. Returns None if the layouts for `plan` do not
        follow from these programs.
        """
        lower = [b for b in self._distributed if b < plan.batch]
        upper = [b for b in self._distributed if b > plan.batch]
        if not lower or not upper or max(lower) % (plan.batch_parts * plan.t * plan.k):
            return None
        batches = max(lower), plan.batch, min(upper)
        between = self._known_between(*batches)
        if not between.holds:
            return None
        return between.program(
            self._distributed[batches[0]], self._distributed[batches[2]]
        )

    def _known_between(self, *batches: int) -> Between:
        """
        Compares the programs for three batch sizes, given in ascending order, and
        returns the comparison. Each comparison is made once.
        """
        if batches not in self._betweens:
            for batch in batches:
                if batch not in self._sizes:
                    self._sizes[batch] = Sizes(self._program(batch), batch)
            self._betweens[batches] = Between(*[self._sizes[b] for b in batches])
        return self._betweens[batches]


def _is_repeated(op: ReshardOp) -> bool:
    """
    Whether `op` communicates a value that all micro-batches share, again for each
    micro-batch.
    """
    before, after = layout_of(op.source), layout_of(op.result)
    assert before is not None and after is not None
    axes = (*before.split_axes, *before.partial_axes)
    if placement_in(before, TIME_AXIS) != REPLICATED or all(
        placement_in(before, axis) == placement_in(after, axis) for axis in axes
    ):
        return False
    layouts = (
        layout_of(value)
        for use in op.result.uses
        for value in (*use.operation.operands, *use.operation.results)
    )
    return any(x and placement_in(x, TIME_AXIS) != REPLICATED for x in layouts)


class ChosenProgram:
    """
    A program with the layouts that were chosen for a plan.

    - `stages`: the compiled functions that the pipelines of this program share with the
      pipelines of other programs; all of these pipelines use the same `profiles`;
    - `layer_ranks`: for each schedule used so far, by its name and chunks, the rank of
      each layer. A layer is a call in the forward pass.
    """

    def __init__(
        self,
        plan: GridPlan,
        module: ModuleOp,
        stages: SharedByMeshes,
        profiles: Sequence[Profile],
    ):
        self._plan = plan
        self._module = module
        self._verifier: DistributionVerifier | None = None
        self._allowed = {plan.k: True}
        self._divisions: dict[_Kind, DividedProgram] = {}
        self.layer_ranks: dict[_Kind, tuple[int, ...]] = {}
        self._simulators: dict[tuple[_Kind, bool], PipelineSimulator] = {}
        self._stages = stages
        self._profiles = profiles
        self._cluster = cluster_in(module, "", "search")
        self._is_uniform = self._cluster is not None

    def is_for(self, plan: GridPlan) -> bool:
        """
        Whether the layouts of this program are also the layouts of `plan`. The result
        does not say whether the layouts are legal for the plan's number of
        micro-batches; `allows` says this.
        """
        first = self._plan
        if first.shared != plan.shared:
            return False
        # With one micro-batch the micro-batch axis splits nothing.
        if first.k == plan.k:
            return True
        return first.k > 1 and plan.k % first.k == 0 and not self._is_for_one_count

    @cached_property
    def _is_for_one_count(self) -> bool:
        """Whether the cost of the layouts depends on the number of micro-batches."""
        return any(
            isinstance(op, ReshardOp) and _is_repeated(op) for op in self._module.walk()
        )

    def allows(self, micro_batches: int) -> bool:
        """
        Whether the layouts are legal for `micro_batches` micro-batches. Raises
        DistIRError if they are not legal for any number.
        """
        # The layouts were chosen for the first of these numbers.
        if micro_batches not in self._allowed:
            if self._verifier is None:
                self._verifier = DistributionVerifier(self._module)
                self._verifier.verify()
            mesh = self._verifier.meshes[MESH]
            if TIME_AXIS in mesh.sizes:
                mesh = mesh.with_size(TIME_AXIS, micro_batches)
            right = self._verifier.is_right_on({MESH: mesh})
            self._allowed[micro_batches] = right
        return self._allowed[micro_batches]

    def copy(self, micro_batches: int) -> ModuleOp:
        """Returns a copy of the program for `micro_batches` micro-batches."""
        module = self._module.clone()
        for op in module.body.block.ops:
            if isinstance(op, MeshOp):
                axes = [
                    (a, micro_batches if a == TIME_AXIS else n) for a, n in op.axes.data
                ]
                op.properties["axes"] = AxesAttr(tuple(axes))
        return module

    def division(self, pipeline: ScheduleOptions, micro_batches: int) -> DividedProgram:
        """
        Returns the division of the program into the stages of `pipeline`, for
        `micro_batches` micro-batches.
        """
        kind = pipeline.schedule, pipeline.chunks
        known = self._divisions.get(kind)
        if known is not None:
            return known.with_micro_batches(micro_batches)
        division = divided(self.copy(micro_batches), pipeline, ())
        if not division.structure.is_for_one_count:
            self._divisions[kind] = division
        schedule = schedule_for(division.structure, pipeline)
        self.layer_ranks[kind] = tuple(
            schedule.stage_rank(division.stages[op])
            for op in division.structure.forward
            if isinstance(op, CallOp)
        )
        return division

    def step(
        self, pipeline: ScheduleOptions, micro_batches: int, buckets: bool = False
    ) -> Step | None:
        """
        Simulates a step of a pipeline with `micro_batches` micro-batches. `buckets`
        says whether collectives are merged into buckets. Returns None if the devices of
        a mesh differ; this pipeline can only be simulated as a program. Raises
        DistIRError if the pipeline is not possible.
        """
        if not self._is_uniform:
            return None
        division = self.division(pipeline, micro_batches)
        try:
            key = (pipeline.schedule, pipeline.chunks), buckets
            known = self._simulators.get(key)
            if known is None or known.division.assigned is not division.assigned:
                shared = self._shared_stages(division, pipeline.p, buckets)
                known = PipelineSimulator(division, shared)
                self._simulators[key] = known
            return known.step(division, pipeline)
        except NotUniform:
            self._is_uniform = False
            return None

    def _shared_stages(
        self, division: DividedProgram, ranks: int, buckets: bool
    ) -> SharedStages:
        """
        Returns the compiled functions that pipelines with the same meshes of stages
        share. Raises NotUniform if the devices of a mesh differ.
        """
        assert self._cluster is not None
        meshes = [Mesh.of(op) for op in division.meshes(ranks)]
        key = str(self._cluster), buckets, *meshes
        if key not in self._stages:
            self._stages[key] = SharedStages(
                meshes, self._cluster, self._profiles, buckets
            )
        return self._stages[key]
