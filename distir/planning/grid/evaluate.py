"""What a plan is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from math import inf

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from distir.dialects.device import AxesAttr, MeshOp
from distir.errors import DistIRError
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.engine.device_map import NotUniform
from distir.passes.distribute import DistributePass
from distir.pipelining import PipelineOptions, ScheduleOptions
from distir.planning.grid.compiled_pipeline import PipelineSimulator, planned
from distir.planning.layouts.fitted import Step
from distir.planning.layouts.layout_graph import ChosenLayouts
from distir.planning.layouts.searched import SearchedLayouts, SearchedPlan
from distir.planning.meshes import MESH, cluster_in
from distir.planning.overlap import overlap_communication
from distir.planning.plan import GridPlan, LayoutPlan, Plan
from distir.planning.programs import Programs, trains
from distir.planning.requests import Requests, check_whole
from distir.planning.result import Impossible, Result, Simulated
from distir.planning.stages import make_pipeline_as_asked
from distir.sharding.mesh import TIME_AXIS
from distir.sharding.verification import DistributionVerifier, verify_distribution
from distir.transforms.partitioning import partition
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.pipeline import divided, pipeline_ops
from distir.transforms.resharding import lower_reshards


def distribute_pass(
    configuration: GridPlan, shard: tuple[str, ...] = ()
) -> DistributePass:
    """The pass that distributes a program like that, with these splits of arguments."""
    c = configuration
    return DistributePass(
        **vars(c.pipeline),
        d=c.d,
        t=c.t,
        zero=c.zero,
        checkpoint=c.checkpoint,
        overlap=c.overlap,
        shard=shard,
    )


def distribute_as(
    context: Context,
    module: ModuleOp,
    result: Simulated,
    requests: Requests,
) -> None:
    """
    Distributes a program like that, as the user's requests allow, and verifies the
    result. Layouts are not searched again. Raises DistIRError.
    """
    plan = result.plan
    if isinstance(plan, GridPlan):
        distribute_pass(plan, requests.shard).apply(context, module)
    elif isinstance(plan, LayoutPlan) and result.layouts is not None:
        searched = SearchedLayouts(requests)
        searched.replay(module, plan, result.layouts)
        verify_distribution(module)
    check_whole(module, requests.whole)


def _schedule(plan: GridPlan) -> ScheduleOptions:
    """What a plan says of the order of its work."""
    return ScheduleOptions(p=plan.p, schedule=plan.schedule)


class Evaluator:
    """
    Distributes and simulates one configuration after another, of programs that `source`
    makes for a size of the batch.

    The layouts are chosen once for configurations that differ in nothing but the schedule
    and the number of micro-batches. They are the same for all numbers that are multiples of
    the first: what a layout costs does not depend on them (`distir.sharding.prices`),
    and what the first one's divisions do not allow theirs do not either. Conversely
    `verify-distribution` says whether theirs allow what was chosen; if not, the
    configuration is distributed on its own. What is simulated is what `distribute` makes,
    but not verified once more: that is for the program that is chosen in the end. How it
    is divided into stages is shared like the layouts (`DividedProgram`).

    `least`: a plan with a lower throughput (samples/s) is of no interest, so that layouts
    for it are not searched to the end.
    """

    def __init__(self, source: Callable[[int], ModuleOp]):
        self.source = source
        known = isinstance(source, Programs)
        self._profiles = source.profiles if known else ()
        self._requests = source.requests if known else Requests()
        self.least = 0.0
        self._context = Context()
        self._programs: dict[int, ModuleOp] = {}
        self._chosen: _Chosen | None = None
        """What layouts were chosen for last."""
        self._searched = SearchedLayouts(self._requests)

    def evaluate(self, configuration: Plan, known: Simulated | None = None) -> Result:
        """
        Simulates a plan, if it is possible. The layouts of `known`, which are those of this
        plan too, are not searched again.
        """
        try:
            step = self._pipelined_step(configuration)
            if step is not None:
                return Simulated(configuration, *step)
            plan = self._plan(configuration, known)
            step = plan.step
            if step is None:
                step = Step.of(simulate(plan.module, profiles=self._profiles))
        except (DistIRError, VerifyException) as error:
            return Impossible(configuration, " ".join(str(error).split()))
        bound = known.bound_s if known else plan.bound
        return Simulated(
            configuration,
            *step,
            bound_s=0.0 if configuration.overlap else bound,
            layouts=plan.layouts,
        )

    def _pipelined_step(self, plan: Plan) -> Step | None:
        """What a pipeline takes, if its program need not be there for that."""
        if not isinstance(plan, GridPlan) or not self._is_simulated_at_once(plan):
            return None
        distribute = distribute_pass(plan, self._requests.shard)
        return self._choose(plan, distribute).step(_schedule(plan), plan.k)

    def _is_simulated_at_once(self, plan: GridPlan) -> bool:
        """Whether a plan is a pipeline whose program nobody needs."""
        return plan.is_pipelined and self._needs_no_program(plan)

    def _needs_no_program(self, plan: Plan) -> bool:
        others = plan.stages or plan.overlap or self._profiles
        return not others and not self._requests.whole

    def prepare(self, plans: Iterable[Plan]) -> None:
        """
        Makes the programs and the schedules of plans, as far as that is possible, for
        processes that are forked to evaluate them.
        """
        for plan in plans:
            with suppress(DistIRError, VerifyException):
                program = self._program(plan.batch)
                if isinstance(plan, GridPlan) and self._is_simulated_at_once(plan):
                    planned(_schedule(plan), plan.k, trains(program))

    def distributed(
        self, configuration: Plan, layouts: ChosenLayouts | None = None
    ) -> ModuleOp:
        """
        The distributed program, with the layouts that were searched for it, if they are
        known. Raises DistIRError.
        """
        if layouts is None or not isinstance(configuration, LayoutPlan):
            return self._plan(configuration).module
        module = self._program(configuration.batch).clone()
        self._searched.replay(module, configuration, layouts)
        return module

    def _plan(
        self, configuration: Plan, known: Simulated | None = None
    ) -> SearchedPlan:
        """The distributed program, and its layouts if they were searched."""
        if isinstance(configuration, LayoutPlan):
            module = self._program(configuration.batch).clone()
            layouts = known.layouts if known else None
            worth = configuration.batch / self.least if self.least else inf
            at_once = _pipeline_step if self._needs_no_program(configuration) else None
            plan = self._searched.search(
                module, configuration, self._profiles, layouts, worth, at_once
            )
        else:
            assert isinstance(configuration, GridPlan)
            plan = SearchedPlan(self._from_grid(configuration))
        if configuration.overlap:
            # It decides without profiles.
            before = None if self._profiles else plan.simulation
            after = overlap_communication(plan.module, before=before)
            plan = replace(plan, step=None if self._profiles else Step.of(after))
        check_whole(plan.module, self._requests.whole)
        return plan

    def _from_grid(self, configuration: GridPlan) -> ModuleOp:
        distribute = distribute_pass(configuration, self._requests.shard)
        chosen = self._choose(configuration, distribute)
        if not configuration.is_pipelined or configuration.stages:
            module = chosen.copy(configuration.k)
            if configuration.is_pipelined:
                make_pipeline_as_asked(module, distribute, distribute.stages)
        else:
            division = chosen.division(distribute, configuration.k)
            ops = pipeline_ops(division, distribute)
            module = ModuleOp(ops, division.module.attributes)
        lower_reshards(module)
        return module

    def _choose(self, configuration: GridPlan, distribute: DistributePass) -> _Chosen:
        """The program in the layouts for a configuration."""
        if self._chosen is None or not self._fits_choice(configuration):
            module = self._program(configuration.batch).clone()
            distribute.annotate(self._context, module)
            partition(module)
            self._chosen = _Chosen(configuration, module)
        return self._chosen

    def _fits_choice(self, configuration: GridPlan) -> bool:
        """Whether the layouts that were chosen last are those of this configuration."""
        return (
            self._chosen is not None
            and self._chosen.is_for(configuration)
            and self._chosen.allows(configuration.k)
        )

    def _program(self, batch: int) -> ModuleOp:
        if batch not in self._programs:
            self._programs = {batch: self.source(batch)}
        return self._programs[batch]


class _Chosen:
    """A program in the layouts that were chosen for a configuration."""

    def __init__(self, configuration: GridPlan, module: ModuleOp):
        self._configuration = configuration
        self._module = module
        self._verifier: DistributionVerifier | None = None
        self._divisions: dict[str, DividedProgram] = {}
        self._simulators: dict[str, PipelineSimulator] = {}
        cluster = cluster_in(module, "", "search")
        self._hardware = None if cluster is None else Hardware.of(cluster)
        self._is_uniform = self._hardware is not None

    def is_for(self, configuration: GridPlan) -> bool:
        """Whether a configuration is to have these layouts, if it allows them."""
        first = self._configuration
        if first.shared != configuration.shared:
            return False
        # With one micro-batch the axis over time splits nothing.
        return first.k == configuration.k or (
            first.k > 1 and configuration.k % first.k == 0
        )

    def allows(self, micro_batches: int) -> bool:
        """
        Whether the program may have that many. Raises DistIRError for one that has layouts
        which are wrong anyway.
        """
        if self._verifier is None:
            self._verifier = DistributionVerifier(self._module)
            self._verifier.verify()
        mesh = self._verifier.meshes[MESH]
        if TIME_AXIS in mesh.sizes:
            mesh = mesh.with_size(TIME_AXIS, micro_batches)
        return self._verifier.is_right_on({MESH: mesh})

    def copy(self, micro_batches: int) -> ModuleOp:
        """The program with that many micro-batches."""
        module = self._module.clone()
        for op in module.body.block.ops:
            if isinstance(op, MeshOp):
                axes = [
                    (a, micro_batches if a == TIME_AXIS else n) for a, n in op.axes.data
                ]
                op.properties["axes"] = AxesAttr(tuple(axes))
        return module

    def division(self, pipeline: ScheduleOptions, micro_batches: int) -> DividedProgram:
        """Its division for a pipeline with that many micro-batches."""
        known = self._divisions.get(pipeline.schedule)
        if known is not None:
            return known.with_micro_batches(micro_batches)
        division = divided(self.copy(micro_batches), pipeline, ())
        if not division.structure.is_for_one_count:
            self._divisions[pipeline.schedule] = division
        return division

    def step(self, pipeline: ScheduleOptions, micro_batches: int) -> Step | None:
        """
        What a step takes in such a pipeline; None if devices of a mesh differ, so that its
        program is needed to find out. Raises DistIRError.
        """
        if self._hardware is None or not self._is_uniform:
            return None
        division = self.division(pipeline, micro_batches)
        try:
            known = self._simulators.get(pipeline.schedule)
            if known is None or known.division.homes is not division.homes:
                known = PipelineSimulator(division, pipeline.p, self._hardware)
                self._simulators[pipeline.schedule] = known
            return known.step(division, pipeline)
        except NotUniform:
            self._is_uniform = False
            return None


def _pipeline_step(module: ModuleOp, pipeline: PipelineOptions) -> Step | None:
    """See `PipelineStep`. Raises DistIRError."""
    cluster = cluster_in(module, "", "search")
    assert cluster is not None
    options = ScheduleOptions(p=pipeline.p, schedule=pipeline.schedule)
    division = divided(module, options, ())
    try:
        simulator = PipelineSimulator(division, options.p, Hardware.of(cluster))
        return simulator.step(division, options)
    except NotUniform:
        return None
