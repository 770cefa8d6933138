"""What a configuration is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from distir.dialects.device import AxesAttr, MeshOp
from distir.errors import DistIRError
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.engine.device_map import NotUniform
from distir.passes.distribute import MESH, DistributePass, cluster_in
from distir.passes.lower_reshard import LowerReshardPass
from distir.passes.overlap_communication import OverlapCommunicationPass
from distir.passes.partition import PartitionPass
from distir.passes.pipeline import PipelinePass
from distir.passes.verify_distribution import (
    DistributionVerifier,
    VerifyDistributionPass,
)
from distir.planning.configuration import Configuration
from distir.planning.grid.compiled_pipeline import PipelineSimulator, Step, planned
from distir.planning.layouts.layout_graph import ChosenLayouts
from distir.planning.layouts.searched import SearchedLayouts, SearchedPlan
from distir.planning.programs import Programs, trains
from distir.planning.requests import Requests, check_whole

from distir.sharding.mesh import TIME_AXIS
from distir.transforms.pipelines.division import DividedProgram


@dataclass(frozen=True)
class Outcome:
    """
    A configuration and its simulation, or why there is none (`error`).

    `peak_memory_bytes` and `memory_bytes` are of the device that has the least left.
    `bound_s`: of searched layouts, no others on that mesh take less (see `Found`), unless
    communication overlaps;
    `layouts`: which they are, so that they need not be searched again.
    """

    configuration: Configuration
    step_time_s: float = 0.0
    throughput_samples_per_s: float = 0.0
    peak_memory_bytes: int = 0
    memory_bytes: int = 0
    error: str = ""
    bound_s: float = 0.0
    layouts: ChosenLayouts | None = None

    @property
    def is_legal(self) -> bool:
        """Whether the program can be distributed like that at all."""
        return not self.error

    @property
    def fits(self) -> bool:
        """Whether it also fits into the memory of all devices."""
        return self.is_legal and self.peak_memory_bytes <= self.memory_bytes

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON data, all in one object."""
        data = asdict(replace(self, layouts=None))
        del data["layouts"]
        return {**data.pop("configuration"), **data, "fits": self.fits}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Outcome:
        """The outcome that `to_json` gave. Raises KeyError and TypeError for others."""
        outcome = Outcome(Configuration(batch=0))
        return replace(
            _read(outcome, data, "configuration", "layouts"),
            configuration=_read(outcome.configuration, data),
        )


_Fields = TypeVar("_Fields", Configuration, Outcome)


def _read(like: _Fields, data: dict[str, Any], *others: str) -> _Fields:
    """The same with the fields that JSON data holds, each of the type that it has there."""
    values: dict[str, Any] = {}
    for field in fields(like):
        if field.name in others:
            continue
        value, kind = data[field.name], type(getattr(like, field.name))
        if type(value) is not kind and (kind, type(value)) != (float, int):
            raise TypeError(f"{field.name} is {value!r}")
        values[field.name] = kind(value)
    return replace(like, **values)


def reusable(outcome: Outcome, configuration: Configuration) -> bool:
    """
    Whether the searched layouts of an outcome are those of a configuration too: if they
    differ in nothing but overlap; or in what does not change the problem, the ranks of a
    pipeline, schedule and stages, if memory did not decide.
    """
    if outcome.layouts is None:
        return False
    c, other = outcome.configuration, configuration
    if replace(c, overlap=other.overlap) == other:
        return True
    same = replace(c, p=1, schedule="", stages="", overlap=False)
    return (
        c.is_pipelined
        and other.is_pipelined
        and not outcome.layouts.limited
        and same == replace(other, p=1, schedule="", stages="", overlap=False)
    )


def distribute_pass(
    configuration: Configuration, shard: tuple[str, ...] = ()
) -> DistributePass:
    """
    The pass that distributes a program like that, with these splits of arguments.
    Searched layouts are for `distribute_as`.
    """
    c = configuration
    return DistributePass(
        d=c.d,
        t=c.t,
        p=c.p,
        k=c.k,
        zero=c.zero,
        checkpoint=c.checkpoint,
        schedule=c.schedule,
        stages=(c.stages,) if c.stages else (),
        overlap=c.overlap,
        shard=shard,
    )


def distribute_as(
    context: Context,
    module: ModuleOp,
    outcome: Outcome,
    requests: Requests,
) -> None:
    """
    Distributes a program like that, as the user's requests allow, and verifies the
    result. Layouts are not searched again. Raises DistIRError.
    """
    configuration = outcome.configuration
    if outcome.layouts is None:
        distribute_pass(configuration, requests.shard).apply(context, module)
    else:
        searched = SearchedLayouts(context, requests)
        searched.replay(module, configuration, outcome.layouts)
        VerifyDistributionPass().apply(context, module)
    check_whole(module, requests.whole)


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
    """

    def __init__(self, source: Callable[[int], ModuleOp]):
        self.source = source
        known = isinstance(source, Programs)
        self._profiles = source.profiles if known else ()
        self._requests = source.requests if known else Requests()
        self._context = Context()
        self._programs: dict[int, ModuleOp] = {}
        self._chosen: _Chosen | None = None
        """What layouts were chosen for last."""
        self._searched = SearchedLayouts(self._context, self._requests)

    def evaluate(
        self, configuration: Configuration, known: Outcome | None = None
    ) -> Outcome:
        """
        Simulates a configuration. One that is not possible has its reason. The layouts of
        `known` (see `reusable`) are not searched again.
        """
        try:
            step = self._pipelined_step(configuration)
            if step is not None:
                return Outcome(configuration, *step)
            plan = self._plan(configuration, known)
            simulation = plan.simulation
            if simulation is None:
                simulation = simulate(plan.module, profiles=self._profiles)
        except (DistIRError, VerifyException) as error:
            return Outcome(configuration, error=" ".join(str(error).split()))
        bound = known.bound_s if known else plan.bound
        peak, memory = min(
            zip(simulation.peak_memory_bytes, simulation.memory_bytes, strict=True),
            key=lambda device: device[1] - device[0],
        )
        return Outcome(
            configuration,
            simulation.step_time_s,
            simulation.throughput_samples_per_s,
            peak,
            memory,
            bound_s=0.0 if configuration.overlap else bound,
            layouts=plan.layouts,
        )

    def _pipelined_step(self, configuration: Configuration) -> Step | None:
        """What a pipeline takes, if its program need not be there for that."""
        c = configuration
        if not self._is_simulated_at_once(c):
            return None
        distribute = distribute_pass(c, self._requests.shard)
        return self._choose(c, distribute).step(distribute.pipeline(), c.k)

    def _is_simulated_at_once(self, configuration: Configuration) -> bool:
        """Whether a configuration is a pipeline whose program nobody needs."""
        c = configuration
        others = c.axes or c.stages or c.overlap or self._profiles
        return c.is_pipelined and not others and not self._requests.whole

    def prepare(self, configurations: Iterable[Configuration]) -> None:
        """
        Makes the programs and the schedules of configurations, as far as that is possible,
        for processes that are forked to evaluate them.
        """
        for c in configurations:
            with suppress(DistIRError, VerifyException):
                program = self._program(c.batch)
                if self._is_simulated_at_once(c):
                    kind = trains(program)
                    planned(distribute_pass(c).pipeline(), c.k, kind)

    def distributed(
        self, configuration: Configuration, layouts: ChosenLayouts | None = None
    ) -> ModuleOp:
        """
        The distributed program, with the layouts that were searched for it, if they are
        known. Raises DistIRError.
        """
        if layouts is None:
            return self._plan(configuration).module
        module = self._program(configuration.batch).clone()
        self._searched.replay(module, configuration, layouts)
        return module

    def _plan(
        self, configuration: Configuration, known: Outcome | None = None
    ) -> SearchedPlan:
        """The distributed program, and its layouts if they were searched."""
        if configuration.axes:
            module = self._program(configuration.batch).clone()
            layouts = known.layouts if known else None
            plan = self._searched.search(module, configuration, self._profiles, layouts)
        else:
            plan = SearchedPlan(self._from_grid(configuration))
        if configuration.overlap:
            OverlapCommunicationPass().apply(self._context, plan.module)
            plan = replace(plan, simulation=None)
        check_whole(plan.module, self._requests.whole)
        return plan

    def _from_grid(self, configuration: Configuration) -> ModuleOp:
        distribute = distribute_pass(configuration, self._requests.shard)
        chosen = self._choose(configuration, distribute)
        if not configuration.is_pipelined or configuration.stages:
            module = chosen.copy(configuration.k)
            distribute.complete(self._context, module)
            return module
        pipeline = distribute.pipeline()
        division = chosen.division(pipeline, configuration.k)
        module = ModuleOp(pipeline.emit(division), division.module.attributes)
        LowerReshardPass().apply(self._context, module)
        return module

    def _choose(
        self, configuration: Configuration, distribute: DistributePass
    ) -> _Chosen:
        """The program in the layouts for a configuration."""
        if self._chosen is None or not self._fits_choice(configuration):
            module = self._program(configuration.batch).clone()
            distribute.annotate(self._context, module)
            PartitionPass(lower=False).apply(self._context, module)
            self._chosen = _Chosen(configuration, module)
        return self._chosen

    def _fits_choice(self, configuration: Configuration) -> bool:
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

    def __init__(self, configuration: Configuration, module: ModuleOp):
        self._configuration = configuration
        self._module = module
        self._verifier: DistributionVerifier | None = None
        self._divisions: dict[str, DividedProgram] = {}
        self._simulators: dict[str, PipelineSimulator] = {}
        cluster = cluster_in(module, "")
        self._hardware = None if cluster is None else Hardware.of(cluster)
        self._is_uniform = self._hardware is not None

    def is_for(self, configuration: Configuration) -> bool:
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

    def division(self, pipeline: PipelinePass, micro_batches: int) -> DividedProgram:
        """Its division for a pipeline with that many micro-batches."""
        known = self._divisions.get(pipeline.schedule)
        if known is not None:
            return known.with_micro_batches(micro_batches)
        division = pipeline.divide(self.copy(micro_batches))
        if not division.structure.is_for_one_count:
            self._divisions[pipeline.schedule] = division
        return division

    def step(self, pipeline: PipelinePass, micro_batches: int) -> Step | None:
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
