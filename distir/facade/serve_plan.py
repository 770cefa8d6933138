"""`distir.serve_plan`: finds the best plan for a service that generates tokens."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Unpack

from distir.errors import one_of
from distir.facade.model_program import ModelProgram
from distir.interpreters.simulator.simulation import write_json
from distir.planning.serving.planned import PlannedService
from distir.planning.serving.search import ServiceResult
from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import ServePlanOptions
from distir.tools.reports.reporting import note
from distir.tools.reports.serving_report import serving_body, write_serving_report
from distir.tools.reports.serving_tables import print_service
from distir.tools.serving import check_service_arguments, planned_service


@dataclass(frozen=True, eq=False)
class PlannedServing:
    """
    The best plan of a service that `serve_plan` found. `str()` of a plan is the output
    of the command `distir serve-plan`.
    """

    planned: PlannedService

    @property
    def result(self) -> ServiceResult:
        """The full result of the search for the plan."""
        return self.planned.result

    @property
    def tokens_per_s(self) -> float:
        """
        The tokens per second that the plan generates within the latency limits; 0 if no
        plan keeps these limits.
        """
        best = self.result.best
        return 0.0 if best is None else best.tokens_per_s

    @property
    def devices_needed(self) -> int | None:
        """
        The number of devices that the requested rate needs; None if no rate was
        requested, or if no plan sustains the rate.
        """
        needed = self.result.needed
        return None if needed is None else needed.devices

    def save(self, path: str | Path) -> None:
        """
        Writes an HTML report if the suffix of `path` is `.html`. Writes the results as
        JSON, which `distir export` reads, if the suffix is `.json`. Raises DistIRError
        for other suffixes, or if the file cannot be written.
        """
        path = Path(path)
        if one_of("ending of a plan", path.suffix, (".html", ".json")) == ".html":
            write_serving_report(self.planned, path)
        else:
            write_json(path, self.planned.to_json())

    def __str__(self) -> str:
        text = StringIO()
        print_service(self.planned, text)
        return text.getvalue()

    def _repr_html_(self) -> str:
        """Returns the report as HTML, for display in a notebook."""
        return f"<div>{serving_body(self.planned)}</div>"


def serve_plan(
    program: ModelProgram | str | Path, **options: Unpack[ServePlanOptions]
) -> PlannedServing:
    """
    Finds the plan of a service that generates the most tokens per second within latency
    limits. The search simulates the steps of the model and the service, and needs no
    GPU.

    - `program`: a decoder, as a program of `import_model` or `build`, or its file;
    - `cluster`, `devices`: a built-in cluster or a cluster file, and the number of
      devices;
    - `prompt`, `generate`, `rate`: the numbers of tokens of each request, and the
      requests per second (`12` or `"12/s"`); or `trace`, a CSV file of requests;
    - `ttft`, `tpot`: limits of the time to the first token and of the time per token
      after it, in seconds or as text (`"40ms"`); `percentile` % of requests must keep
      them;
    - The other options are those of the command `distir serve-plan`.

    Raises DistIRError if the program is not a decoder, or if no replica can serve the
    requests.
    """
    source = ModelProgram.of(program)
    given = command_options("serve-plan", "serve_plan", [source.name], options)
    check_service_arguments(given)
    return PlannedServing(planned_service(source.module, source.name, given, note))
