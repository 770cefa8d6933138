"""The options of `simulate`, for the pass and for the command."""

from __future__ import annotations

from dataclasses import dataclass

from distir.hardware.options import ProfileOptions, TargetOptions
from distir.options import option


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(ProfileOptions, TargetOptions):
    """Options of a simulation, including the files for its results."""

    flat: bool = option(
        False,
        "execute every op on every device, without summaries: slower, the same result",
    )
    trace: str | None = option(
        None,
        "write a timeline for chrome://tracing or ui.perfetto.dev",
        metavar="trace.json",
        kind="output_file",
    )
    json: str | None = option(
        None,
        "write the numbers to a file",
        metavar="out.json",
        kind="output_file",
    )
    html: str | None = option(
        None,
        "write a report to open in a browser: timelines, memory over time, where "
        "the time goes; one file that needs no network",
        metavar="report.html",
        kind="output_file",
    )
