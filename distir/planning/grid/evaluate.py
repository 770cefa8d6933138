"""Evaluates plans: distributes and simulates the program by each of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from distir.errors import DistIRError
from distir.gradients.call_pairs import call_pairs
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.costs.op_costs import cost_function
from distir.interpreters.simulator.engine.device_map import NotUniform
from distir.interpreters.simulator.simulation import Simulation
from distir.pipelining import PipelineOptions, ScheduleOptions
from distir.planning.distribution.buckets import bucket_collectives_of
from distir.planning.distribution.distribute import (
    distribute,
    offload_states_as_asked,
    pass_keys_on_as_asked,
    share_gathers_as_asked,
)
from distir.planning.distribution.meshes import cluster_in
from distir.planning.distribution.options import DistributionOptions
from distir.planning.distribution.overlap import overlap_communication
from distir.planning.expectations import check_expectations
from distir.planning.grid.choice import ChosenProgram, LayoutChooser
from distir.planning.grid.compiled_pipeline import PipelineSimulator, planned
from distir.planning.grid.shared_stages import SharedStages
from distir.planning.layouts.chosen import ChosenLayouts
from distir.planning.layouts.fitted_plan import Step
from distir.planning.layouts.searched import SearchedLayouts, SearchedPlan
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan
from distir.planning.plans.programs import Programs, trains
from distir.planning.plans.result import Impossible, Result, Simulated
from distir.planning.requests import Requests, check_whole
from distir.planning.stages import make_pipeline_as_asked
from distir.program import entry_function, functions, parameters_of_gradients
from distir.sharding.local import local_form
from distir.sharding.mesh import Mesh
from distir.sharding.rule import sharding_rule
from distir.sharding.verification import verify_distribution
from distir.transforms.pipelines.kinds import WholeBatchNeeded
from distir.transforms.pipelines.pipeline import divided, pipeline_ops
from distir.transforms.resharding import lower_reshards

if TYPE_CHECKING:
    from distir.interpreters.simulator.profiles.profile import Profile


_SHORT = 20_000
"""
The largest number of pipeline ranks times micro-batches of a schedule that is made in
advance. Longer ones take seconds each, and a search with a time limit gets to few of
them.
"""


def distribute_as(module: ModuleOp, result: Simulated, requests: Requests) -> None:
    """
    Distributes a program by the plan in `result`, with the user's requests, and
    verifies it. Uses the layouts in `result` and searches none. Raises DistIRError if
    the requests are not met or the program is not correct.
    """
    plan = result.plan
    if isinstance(plan, GridPlan):
        distribute(module, grid_options(plan, requests))
    elif isinstance(plan, LayoutPlan) and result.layouts is not None:
        searched = SearchedLayouts(requests)
        searched.replay(module, plan, result.layouts)
        verify_distribution(module)
    check_whole(module, requests.whole)
    check_expectations(module)


def grid_options(plan: GridPlan, requests: Requests) -> DistributionOptions:
    """
    Returns the options of `distribute` for a plan of the grid, with the user's
    requests. Raises DistIRError if a request splits an argument over an axis that the
    plan lacks.
    """
    sizes = {"r": plan.r, "d": plan.d, "e": plan.e, "c": plan.c, "t": plan.t}
    for axis in sorted(requests.axes):
        if sizes.get(axis, 1) == 1:
            raise DistIRError(
                f"arguments are to be split over axis {axis!r}, which this plan has not"
            )
    return plan.options(requests.shard, requests.whole)


def _source_of(plan: Plan) -> Hashable:
    """
    Returns a key of the program that a plan divides into micro-batches. The program
    depends on the batch size, and on the numbers of shards of experts and sequences.
    """
    if not isinstance(plan, GridPlan):
        return plan.batch, 1, 1
    return plan.batch, plan.options().expert_degree, plan.c


def _schedule(plan: GridPlan) -> ScheduleOptions:
    """Returns the schedule options of a plan."""
    return ScheduleOptions(p=plan.p, schedule=plan.schedule, chunks=plan.chunks or None)


class Evaluator:
    """
    Distributes and simulates one plan after another.

    - `source`: makes the sequential program for a batch size;
    - `profiles`: measured speeds of devices; by default the profiles of `source`;
    - `least`: a throughput in samples/s. Slower plans are not of interest, so the
      search for their layouts may stop early.

    The simulated program is the one that `distribute` makes, but it is not verified;
    only the finally chosen program is. Plans share layouts (`LayoutChooser`), the
    division of the program into stages (`DividedProgram`) and compiled stages
    (`SharedStages`).
    """

    def __init__(
        self, source: Callable[[int], ModuleOp], profiles: Sequence[Profile] = ()
    ):
        self.source = source
        known = isinstance(source, Programs)
        self._profiles = source.profiles if known else tuple(profiles)
        self._requests = source.requests if known else Requests()
        self.least = 0.0
        self._programs: dict[int, ModuleOp] = {}
        self._chooser = LayoutChooser(self._program, self._profiles)
        self._searched = SearchedLayouts(self._requests)
        self._undivided: dict[Hashable, str] = {}
        """
        The reasons why programs cannot be divided into micro-batches. The keys are
        those that `_source_of` returns for plans.
        """

    def learn(self, result: Result) -> None:
        """
        Remembers whether `result` shows that a program cannot be divided into
        micro-batches: no plan for the same program is then possible with several
        micro-batches.
        """
        if isinstance(result, Impossible) and result.is_undivided:
            self._undivided[_source_of(result.plan)] = result.error

    def refusal(self, plan: Plan) -> Impossible | None:
        """
        Returns an impossible result for `plan` if an earlier plan has shown that its
        program cannot be divided into micro-batches. Returns None for any other plan.
        """
        error = self._undivided.get(_source_of(plan)) if plan.k > 1 else None
        return None if error is None else Impossible(plan, error, is_undivided=True)

    def evaluate(self, plan: Plan, known: Simulated | None = None) -> Result:
        """
        Distributes and simulates a plan and returns the result. If the plan is not
        possible, the result says why. If the layouts in `known` are also the layouts of
        `plan`, they are used instead of a search.
        """
        if (refusal := self.refusal(plan)) is not None:
            return refusal
        try:
            step = self._pipelined_step(plan)
            if step is not None:
                return Simulated(plan, *step, layer_ranks=self._layer_ranks(plan))
            found = self._distributed(plan, known)
            simulated = found.simulated
            if simulated is None:
                simulated = simulate(found.module, profiles=self._profiles)
            if isinstance(simulated, Simulation):
                _check_hosts(simulated)
            step = Step.of(simulated)
        except (DistIRError, VerifyException) as error:
            is_undivided = isinstance(error, WholeBatchNeeded) and plan.k > 1
            result = Impossible(plan, " ".join(str(error).split()), is_undivided)
            self.learn(result)
            return result
        bound = known.bound_s if known else found.bound
        return Simulated(
            plan,
            *step,
            bound_s=0.0 if plan.overlap or plan.buckets else bound,
            layouts=found.layouts,
            layer_ranks=self._layer_ranks(plan),
        )

    def _layer_ranks(self, plan: Plan) -> tuple[int, ...]:
        """
        Returns the pipeline rank of each layer of a training step. Returns an empty
        tuple if the ranks are not known, because stages or layouts of a pipeline are
        searched.
        """
        if plan.p > 1 and (plan.stages or not isinstance(plan, GridPlan)):
            return ()
        if isinstance(plan, GridPlan) and plan.p > 1:
            ranks = self._choose(plan).layer_ranks
            return ranks.get((plan.schedule, plan.chunks or None), ())
        module = self._program(plan.batch)
        return (0,) * len(call_pairs(entry_function(module), functions(module)))

    def _pipelined_step(self, plan: Plan) -> Step | None:
        """
        Returns the simulated step of a pipeline that can be simulated without building
        its program. Returns None if `plan` is not a pipeline of this kind, or if the
        devices of a mesh differ.
        """
        if not isinstance(plan, GridPlan) or not self._is_simulated_at_once(plan):
            return None
        return self._choose(plan).step(_schedule(plan), plan.k, plan.buckets)

    def _is_simulated_at_once(self, plan: GridPlan) -> bool:
        """
        Whether a plan is a pipeline that can be simulated without building its program.
        """
        return plan.is_pipelined and self._needs_no_program(plan)

    def _needs_no_program(self, plan: Plan) -> bool:
        is_changed = isinstance(plan, GridPlan) and (
            plan.context == "ring" or plan.offload_states
        )
        others = plan.stages or plan.overlap or is_changed
        return (
            not others and not self._requests.whole and not self._shares_gathers(plan)
        )

    def _shares_gathers(self, plan: Plan) -> bool:
        """
        Whether the first micro-batch of a plan gathers parameters for all others: ZeRO
        stages 1 and 2 of a step whose optimizer is outside of the program.
        """
        if not isinstance(plan, GridPlan) or plan.zero not in (1, 2):
            return False
        function = entry_function(self._program(plan.batch))
        return bool(parameters_of_gradients(function))

    def prepare(self, plans: Sequence[Plan]) -> None:
        """
        Computes in advance the data that plans share (programs, their comparisons,
        schedules), before processes are forked to evaluate them. Also imports the
        modules that these processes need, so that they are imported once.
        """
        for registry in (sharding_rule, local_form, cost_function):
            registry.load()
        for plan in plans:
            with suppress(DistIRError, VerifyException):
                program = self._program(plan.batch)
                if (
                    isinstance(plan, GridPlan)
                    and plan.p * plan.k <= _SHORT
                    and self._is_simulated_at_once(plan)
                ):
                    planned(_schedule(plan), plan.k, trains(program))
        batches = sorted({p.batch for p in plans if isinstance(p, GridPlan)})
        with suppress(DistIRError, VerifyException):
            self._chooser.prepare(batches)

    def distributed(self, plan: Plan, layouts: ChosenLayouts | None = None) -> ModuleOp:
        """
        Returns the distributed program for a plan. `layouts` are the layouts that were
        searched for the plan; without them they are searched. Raises DistIRError if the
        plan is not possible.
        """
        if layouts is None or not isinstance(plan, LayoutPlan):
            return self._distributed(plan).module
        module = self._program(plan.batch).clone()
        self._searched.replay(module, plan, layouts)
        return module

    def _distributed(self, plan: Plan, known: Simulated | None = None) -> SearchedPlan:
        """
        Distributes the program by a plan. Returns the program, with its layouts if they
        were searched. `known` is a result whose layouts may be used.
        """
        if isinstance(plan, LayoutPlan):
            module = self._program(plan.batch).clone()
            layouts = known.layouts_for(plan) if known else None
            # Layouts are searched at the price of single messages, as the speed of buckets
            # is not known before.
            has_cutoff = self.least and not plan.buckets
            cutoff = plan.batch / self.least if has_cutoff else inf
            at_once = None
            if self._needs_no_program(plan):
                at_once = partial(_pipeline_step, self._profiles)
            found = self._searched.search(
                module, plan, self._profiles, layouts, cutoff, at_once
            )
        else:
            assert isinstance(plan, GridPlan)
            found = SearchedPlan(self._from_grid(plan))
        if plan.buckets and isinstance(plan, GridPlan):
            bucket_collectives_of(found.module)
        if isinstance(plan, GridPlan):
            offload_states_as_asked(found.module, plan.options())
        if plan.overlap:
            # Overlap is chosen without profiles: a simulation with them is of no use.
            before = found.simulated
            if self._profiles or isinstance(before, Step):
                before = None
            after = overlap_communication(found.module, before=before).simulation
            found = replace(found, simulated=None if self._profiles else after)
        check_whole(found.module, self._requests.whole)
        check_expectations(found.module, plan.k if plan.is_pipelined else 1)
        return found

    def _from_grid(self, plan: GridPlan) -> ModuleOp:
        chosen, options = self._choose(plan), plan.pipeline
        if not plan.is_pipelined or plan.stages:
            module = chosen.copy(plan.k)
            if plan.is_pipelined:
                make_pipeline_as_asked(module, options, options.stages)
        else:
            division = chosen.division(options, plan.k)
            ops = pipeline_ops(division, options)
            module = ModuleOp(ops, division.module.attributes)
        lower_reshards(module)
        share_gathers_as_asked(module, plan.options())
        pass_keys_on_as_asked(module, plan.options())
        return module

    @property
    def shared_stages(self) -> list[SharedStages]:
        """
        The compiled functions that the pipelines simulated so far share: one entry per
        combination of cluster, buckets and meshes of stages.
        """
        return self._chooser.shared_stages

    def _choose(self, plan: GridPlan) -> ChosenProgram:
        return self._chooser.choose(plan, grid_options(plan, self._requests))

    def _program(self, batch: int) -> ModuleOp:
        if batch not in self._programs:
            self._programs[batch] = self.source(batch)
        return self._programs[batch]


def _check_hosts(simulation: Simulation) -> None:
    """
    Raises DistIRError if the memory of hosts is too small for the tensors that devices
    keep there.
    """
    if simulation.hosts_too_small:
        place = simulation.devices.index(simulation.hosts_too_small[0])
        raise DistIRError(
            f"{simulation.host_bytes[place] / 1e9:.4g} GB of device {simulation.devices[place]} "
            f"are in the memory of its host, which has "
            f"{(simulation.host_memory_bytes[place] or 0) / 1e9:.4g} GB for it"
        )


def _pipeline_step(
    profiles: Sequence[Profile],
    module: ModuleOp,
    pipeline: PipelineOptions,
    buckets: bool,
) -> Step | None:
    """
    Simulates a step of a pipeline without building its program. `module` is the
    partitioned program of one micro-batch. Returns None if the devices of a mesh
    differ. Raises DistIRError if the pipeline is not possible.
    """
    cluster = cluster_in(module, "", "search")
    assert cluster is not None
    options = ScheduleOptions(p=pipeline.p, schedule=pipeline.schedule)
    division = divided(module, options, ())
    meshes = [Mesh.of(op) for op in division.meshes(options.p)]
    try:
        shared = SharedStages(meshes, cluster, profiles, buckets)
        return PipelineSimulator(division, shared).step(division, options)
    except NotUniform:
        return None
