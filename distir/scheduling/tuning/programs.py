"""The programs of a tuning: a model, scheduled with values of its knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.transform import NamedSequenceOp

from distir.dialects.device import ClusterOp
from distir.planning.grid.evaluate import Evaluator
from distir.planning.programs import replace_cluster
from distir.scheduling.run import apply_schedule
from distir.scheduling.script import add_schedules
from distir.scheduling.tuning.space import Chosen, Point

if TYPE_CHECKING:
    from distir.interpreters.simulator.profiles.profile import Profile


@dataclass(frozen=True)
class TunedPrograms:
    """
    A model for several sizes of the batch, with a schedule.

    - `models`: the sequential programs, by the size of the batch;
    - `sequence`: the schedule; `cluster`: what is distributed over;
    - `prepare`: what is done to a scheduled program before it is distributed, such as
      `differentiate`, in place;
    - `profiles`: what the cluster's devices reach in practice.
    """

    models: Mapping[int, ModuleOp]
    sequence: NamedSequenceOp
    cluster: ClusterOp
    prepare: Callable[[ModuleOp], None]
    profiles: Sequence[Profile] = ()

    def scheduled(self, chosen: Chosen, batch: int) -> ModuleOp:
        """The program as the schedule asks for it. Raises DistIRError."""
        module = self.models[batch].clone()
        add_schedules(module, [self.sequence.clone()])
        settings = [f"{name}={value}" for name, value in chosen]
        apply_schedule(module, self.sequence.sym_name.data, settings)
        return module

    def sequential(self, chosen: Chosen, batch: int) -> ModuleOp:
        """The program that is distributed: scheduled, prepared and on the cluster."""
        module = self.scheduled(chosen, batch)
        self.prepare(module)
        replace_cluster(module, self.cluster.clone())
        return module

    def evaluator(self, chosen: Chosen) -> Evaluator:
        """What simulates plans with these knobs."""
        return Evaluator(lambda batch: self.sequential(chosen, batch), self.profiles)

    def distributed(self, point: Point) -> ModuleOp:
        """The distributed program of a point, verified. Raises DistIRError."""
        from distir.planning.distribution import distribute

        module = self.sequential(point.chosen, point.plan.batch)
        distribute(module, point.plan.options())
        return module
