"""The programs of a tuning: a model, scheduled with values of its knobs."""

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
    - `prepare`: changes a scheduled program in place before it is distributed, for instance
      by `differentiate`;
    - `profiles`: what the cluster's devices reach in practice.
    """

    models: Mapping[int, ModuleOp]
    sequence: NamedSequenceOp
    cluster: ClusterOp
    prepare: Callable[[ModuleOp], None]
    profiles: Sequence[Profile] = ()

    def scheduled(self, chosen: Chosen, batch: int) -> ModuleOp:
        """
        Returns the program after the schedule, with these values of its knobs. Raises
        DistIRError.
        """
        module = self.models[batch].clone()
        add_schedules(module, [self.sequence.clone()])
        settings = [f"{name}={value}" for name, value in chosen]
        apply_schedule(module, self.sequence.sym_name.data, settings)
        return module

    def sequential(self, chosen: Chosen, batch: int) -> ModuleOp:
        """
        Returns the program that is distributed: scheduled, prepared and on the cluster.
        """
        module = self.scheduled(chosen, batch)
        self.prepare(module)
        replace_cluster(module, self.cluster.clone())
        return module

    def evaluator(self, chosen: Chosen) -> Evaluator:
        """A simulator of plans for the program at these values of the knobs."""
        return Evaluator(lambda batch: self.sequential(chosen, batch), self.profiles)

    def distributed(self, point: Point) -> ModuleOp:
        """Returns the distributed program of a point, verified. Raises DistIRError."""
        from distir.planning.distribution.distribute import distribute

        module = self.sequential(point.chosen, point.plan.batch)
        distribute(module, point.plan.options())
        return module
