"""
The programs of a tuning: a model with a schedule, for values of the schedule's knobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.transform import NamedSequenceOp

from distir.dialects.device import ClusterOp
from distir.planning.grid.evaluate import Evaluator
from distir.planning.plans.programs import replace_cluster
from distir.scheduling.run import apply_schedule
from distir.scheduling.script import add_schedules
from distir.scheduling.tuning.space import Chosen, Point

if TYPE_CHECKING:
    from distir.interpreters.simulator.profiles.profile import Profile


@dataclass(frozen=True)
class TunedPrograms:
    """
    A model for several batch sizes, with a schedule.

    - `models`: the sequential programs, by batch size;
    - `sequence`: the schedule;
    - `cluster`: the cluster to distribute over;
    - `prepare`: a function that changes a scheduled program in place before its
      distribution, for example by `differentiate`;
    - `profiles`: measured speeds of the cluster's devices.
    """

    models: Mapping[int, ModuleOp]
    sequence: NamedSequenceOp
    cluster: ClusterOp
    prepare: Callable[[ModuleOp], None]
    profiles: Sequence[Profile] = ()

    def scheduled(self, chosen: Chosen, batch: int) -> ModuleOp:
        """
        Returns the program for batch size `batch` with the schedule applied, for the
        knob values `chosen`. Raises DistIRError if the schedule cannot be applied.
        """
        module = self.models[batch].clone()
        add_schedules(module, [self.sequence.clone()])
        settings = [f"{name}={value}" for name, value in chosen]
        apply_schedule(module, self.sequence.sym_name.data, settings)
        return module

    def sequential(self, chosen: Chosen, batch: int) -> ModuleOp:
        """
        Returns the sequential program before its distribution: with the schedule
        applied, prepared, and with the cluster.
        """
        module = self.scheduled(chosen, batch)
        self.prepare(module)
        replace_cluster(module, self.cluster.clone())
        return module

    def evaluator(self, chosen: Chosen) -> Evaluator:
        """
        Returns a simulator of plans for the program with the knob values `chosen`.
        """
        return Evaluator(lambda batch: self.sequential(chosen, batch), self.profiles)

    def distributed(self, point: Point) -> ModuleOp:
        """
        Returns the distributed and verified program of a point (knob values and a
        plan). Raises DistIRError if the program cannot have this schedule or this plan.
        """
        from distir.planning.distribution.distribute import distribute

        module = self.sequential(point.chosen, point.plan.batch)
        distribute(module, point.plan.options())
        return module
