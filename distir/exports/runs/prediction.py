"""Predicts the time and the memory of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.exports.runs.model import training_step
from distir.exports.systems.plan_file import grid_plan
from distir.exports.systems.settings import RunSettings
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.simulation import Simulation
from distir.passes.distribute import DistributePass
from distir.planning.plans.programs import replace_cluster
from distir.transforms.expert_shards import assume_imbalance

_MANY = 4
"""
A step is extrapolated from shorter ones if it has more than this many times their
micro-batches. Each further micro-batch takes the same time.
"""


@dataclass(frozen=True)
class Prediction:
    """
    The simulated step of a run.

    - `seconds`: the time of the step;
    - `exposed`: the fraction of the step in which devices wait for communication;
    - `bubble`: the fraction of the step in which devices wait for other pipeline ranks;
    - `mfu`: the achieved fraction of the devices' peak performance;
    - `peak`, `memory`: the peak memory and the available memory, in bytes, of the
      device with the least memory to spare.
    """

    seconds: float
    exposed: float
    bubble: float
    mfu: float
    peak: int
    memory: int

    @property
    def fits(self) -> bool:
        """Whether the step fits into the memory of the devices."""
        return self.peak <= self.memory

    @property
    def limit(self) -> str:
        """
        A sentence that names the limit of the step: memory, or the largest of
        computation, exposed communication and pipeline bubble.
        """
        if not self.fits:
            return "memory: the step does not fit, so it cannot run"
        parts = {
            "computation": 1 - self.exposed - self.bubble,
            "communication that nothing hides": self.exposed,
            "the pipeline's bubble": self.bubble,
        }
        name = max(parts, key=lambda part: parts[part])
        others = ", ".join(
            f"{n} {100 * v:.3g} %" for n, v in parts.items() if n != name
        )
        return f"{name}, {100 * parts[name]:.3g} % of the step ({others})"


class Predictor:
    """
    Predicts runs of one model on one cluster. Runs with the same batch and precision
    share one cached program. `profiles` are the names of the devices' profiles.
    `expert_imbalance` is the assumed load of the busiest device of expert parallelism,
    as a multiple of the mean load, or None for the default.
    """

    def __init__(
        self,
        cluster: ClusterOp,
        profiles: Sequence[str],
        expert_imbalance: float | None = None,
    ):
        self.cluster = cluster
        self.expert_imbalance = expert_imbalance
        self.profiles = tuple(profiles)
        self._programs: dict[tuple[object, ...], ModuleOp] = {}

    def program(self, settings: RunSettings, vocab: int, batch: int) -> ModuleOp:
        """
        Returns the sequential step for a batch of `batch` sequences and `vocab` rows of
        the embedding. Callers must not change the program, because it is cached for
        later calls.
        """
        key = (vocab, batch, settings.dtype, settings.gradients_f32, settings.float8)
        if key not in self._programs:
            if len(self._programs) > 6:  # programs are large
                self._programs.pop(next(iter(self._programs)))
            module = training_step(settings, vocab, batch)
            assume_imbalance(module, self.expert_imbalance)
            self._programs[key] = module
        return self._programs[key]

    def predict(self, settings: RunSettings, vocab: int) -> Prediction:
        """
        Returns the prediction for a run. `vocab` is the number of rows of the
        embedding. A step with many micro-batches is extrapolated from two steps with
        fewer micro-batches. Raises DistIRError if the program cannot be distributed by
        the plan of `settings`.
        """
        unit = settings.micro_batch * settings.batch_parts
        stages = settings.p * max(settings.chunks, 1)
        few = -(-max(2 * stages, 8) // settings.p) * settings.p
        if settings.k <= _MANY * few:
            return self._simulated(settings, vocab, settings.k * unit)
        first = self._simulated(settings, vocab, few * unit)
        more = self._simulated(settings, vocab, (few + settings.p) * unit)
        return _extended(first, more, few, settings)

    def _simulated(self, settings: RunSettings, vocab: int, batch: int) -> Prediction:
        module = self.program(settings, vocab, batch).clone()
        replace_cluster(module, self.cluster.clone())
        own = replace(settings, batch=batch)
        options = grid_plan(own).options()
        if own.overlap:
            options = replace(options, overlapped=tuple(own.overlap.split(",")))
        DistributePass.of(options).apply(Context(), module)
        return _prediction(simulate(module, profiles=self.profiles))


def _prediction(result: Simulation) -> Prediction:
    place = min(
        range(len(result.devices)),
        key=lambda i: result.memory_bytes[i] - result.reserved_memory_bytes[i],
    )
    return Prediction(
        result.step_time_s,
        result.exposed_communication,
        result.bubble_fraction,
        result.mfu,
        max(result.reserved_memory_bytes[place], result.peak_memory_bytes[place]),
        result.memory_bytes[place],
    )


def _extended(
    first: Prediction, more: Prediction, few: int, settings: RunSettings
) -> Prediction:
    """
    Extrapolates the prediction to all micro-batches of `settings`. `first` is the
    prediction for `few` micro-batches, and `more` is the prediction for `few` plus the
    number of pipeline ranks. Times grow linearly with the number of micro-batches.
    """
    count = (settings.k - few) / settings.p

    def grown(a: float, b: float) -> float:
        return a + count * (b - a)

    seconds = grown(first.seconds, more.seconds)
    useful = grown(first.mfu * first.seconds, more.mfu * more.seconds)
    exposed = grown(first.exposed * first.seconds, more.exposed * more.seconds)
    bubble = grown(first.bubble * first.seconds, more.bubble * more.seconds)
    return replace(
        more,
        seconds=seconds,
        exposed=max(exposed, 0.0) / seconds,
        bubble=max(bubble, 0.0) / seconds,
        mfu=useful / seconds,
        peak=max(first.peak, more.peak),
    )
