"""The file that records the trials and measurements of a tuning, for resuming it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distir.planning.grid.journal import JournalFile
from distir.planning.plans.plan import GridPlan
from distir.planning.plans.result import from_json
from distir.scheduling.knobs import KnobChoice
from distir.scheduling.tuning.programs import TunedPrograms
from distir.scheduling.tuning.space import Chosen, Point
from distir.scheduling.tuning.trials import Trial

_FORMAT = 1


@dataclass(frozen=True)
class Measurement:
    """
    A measured point, with the seconds of its step. The seconds are None if the point
    ran out of memory.
    """

    point: Point
    seconds: float | None

    @property
    def throughput(self) -> float | None:
        """The measured samples per second; None if the point ran out of memory."""
        return None if self.seconds is None else self.point.plan.batch / self.seconds


class TuningJournal(JournalFile[Trial | Measurement]):
    """
    The journal of a tuning. Its rows are trials and measurements. `task` is a text that
    identifies the tuning together with its programs, such as the loss and the
    optimizer.
    """

    def __init__(self, path: Path, programs: TunedPrograms, task: str):
        texts = {str(batch): str(module) for batch, module in programs.models.items()}
        texts |= {
            "schedule": str(programs.sequence),
            "cluster": str(programs.cluster),
            "profiles": repr(programs.profiles),
            "task": task,
        }
        digests = {n: hashlib.sha256(t.encode()).hexdigest() for n, t in texts.items()}
        super().__init__(path, {"tuning": _FORMAT, "programs": digests})

    def encoded(self, row: Trial | Measurement) -> Mapping[str, Any]:
        data: dict[str, Any] = {"knobs": dict(row.point.chosen)}
        if isinstance(row, Trial):
            return {**data, "simulated": row.result.to_json()}
        return {**data, "plan": vars(row.point.plan), "measured_s": row.seconds}

    def decoded(self, data: Any) -> Trial | Measurement:
        chosen: Chosen = tuple((str(n), _value(v)) for n, v in data["knobs"].items())
        if "simulated" in data:
            result = from_json(data["simulated"])
            if not isinstance(result.plan, GridPlan):
                raise TypeError(f"{result.plan} is no plan of a grid")
            return Trial(Point(chosen, result.plan), result)
        seconds = data["measured_s"]
        if seconds is not None and not isinstance(seconds, float):
            raise TypeError(f"measured_s is {seconds!r}")
        return Measurement(Point(chosen, GridPlan(**data["plan"])), seconds)


def _value(value: Any) -> KnobChoice:
    if not isinstance(value, int | float | str):
        raise TypeError(f"the value of a knob is {value!r}")
    return value
