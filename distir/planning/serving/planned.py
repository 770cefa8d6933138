"""The result of a search for a service plan, together with the inputs of the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distir.frontends.models.serving_step import DecoderSizes
from distir.planning.serving.options import ServiceOptions
from distir.planning.serving.plans import LatencyLimits
from distir.planning.serving.search import ServiceResult

FORMAT = "distir serving plan"
"""The value of `format` in files of service plans."""


@dataclass(frozen=True)
class PlannedService:
    """
    A service plan with the inputs of its search. The inputs are the name of the
    program, the sizes of its model, the names of the cluster and of the profiles, the
    number of devices, the mean numbers of prompt and generated tokens of a request, the
    most tokens of a request (`longest`), the rate in requests/s, and the limits.
    """

    program: str
    sizes: DecoderSizes
    cluster: str
    devices: int
    profiles: Sequence[str]
    prompt: float
    generate: float
    longest: int
    rate: float | None
    limits: LatencyLimits
    options: ServiceOptions
    result: ServiceResult

    def to_json(self) -> dict[str, Any]:
        """Returns the plan and the inputs as JSON data."""
        found = self.result
        return {
            "format": FORMAT,
            "program": self.program,
            "model": asdict(self.sizes),
            "cluster": self.cluster,
            "devices": self.devices,
            "profiles": list(self.profiles),
            "workload": {
                "prompt": self.prompt,
                "generate": self.generate,
                "longest_request": self.longest,
                "rate": self.rate,
                "prefix_hits": self.options.prefix_hits,
                "seed": self.options.seed,
            },
            "limits": self.limits.to_json(),
            "memory_share": self.options.memory_share,
            "best": None if found.best is None else found.best.to_json(),
            "at_rate": None if found.at_rate is None else found.at_rate.to_json(),
            "needed": None if found.needed is None else found.needed.to_json(),
            "highest": [point.to_json() for point in found.highest],
            "front": [point.to_json() for point in found.front],
            "points": [point.to_json() for point in found.points],
            "refused": [
                {"t": r.shape.t, "p": r.shape.p, "e": r.shape.e, "reason": r.reason}
                for r in found.refused
            ],
            "simulations": found.simulations,
            "step_time_error": found.error,
        }
