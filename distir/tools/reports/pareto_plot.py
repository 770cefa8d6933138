"""Draws the results of a search as an SVG file: throughput over peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distir.errors import DistIRError
from distir.planning.grid import Result, Simulated, pareto_front
from distir.planning.plans.result import simulated
from distir.system.output_files import write_text
from distir.tools.reports.svg import Chart, document, line

_WIDTH, _HEIGHT = 800, 520
_STYLE = (
    ".limit { stroke: #b00; stroke-dasharray: 5 4 } .large { fill: #ccc } "
    ".fits { fill: #4878a8 } .front { fill: #d65f00 } "
    ".line { fill: none; stroke: #d65f00; stroke-width: 1.5 }"
)


def write_pareto_plot(path: Path, results: Sequence[Result]) -> None:
    """
    Writes an SVG file with a dot for each result: throughput over peak memory. Both
    axes are logarithmic. Results that do not fit into memory are grey. The Pareto front
    of the others is orange. A dot's tooltip names its plan. Raises DistIRError if the
    file cannot be written.
    """
    try:
        write_text(path, pareto_plot(results))
    except OSError as error:
        raise DistIRError(f"cannot write {path}: {error.strerror}") from error


def pareto_plot(results: Sequence[Result]) -> str:
    """Returns the plot of throughput over peak memory as SVG text."""
    drawn = [
        o
        for o in simulated(results)
        if o.throughput_samples_per_s > 0 and o.peak_memory_bytes
    ]
    parts = [
        f'<text x="{Chart.LEFT}" y="24" style="font-weight: bold">{len(results)} '
        f"configurations, {sum(o.fits for o in results)} fit into memory</text>",
        f'<text x="{Chart.LEFT}" y="44">orange: Pareto front; grey: does not fit</text>',
    ]
    if drawn:
        limits = sorted({o.memory_bytes / 1e9 for o in drawn})
        memory = [*(o.peak_memory_bytes / 1e9 for o in drawn), *limits]
        speeds = [o.throughput_samples_per_s for o in drawn]
        chart = Chart(_WIDTH, _HEIGHT, 30, 60, memory, speeds)
        parts += chart.grid("peak memory [GB]", "throughput [samples/s]")
        for at in map(chart.x, limits):
            parts.append(line(at, chart.y.start, at, chart.y.end, "limit"))
        parts += _dots(drawn, chart)
    return document(_WIDTH, _HEIGHT, _STYLE, parts)


def _dots(drawn: Sequence[Simulated], chart: Chart) -> list[str]:
    front = pareto_front(drawn)
    # The most important dots are drawn last, above the rest.
    order = {"large": 0, "fits": 1, "front": 2}
    kinds = [
        ("front" if o in front else "fits" if o.fits else "large", o) for o in drawn
    ]
    points = [
        (chart.x(o.peak_memory_bytes / 1e9), chart.y(o.throughput_samples_per_s))
        for o in front
    ]
    parts: list[str] = []
    if len(points) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline class="line" points="{path}"/>')
    for kind, o in sorted(kinds, key=lambda pair: order[pair[0]]):
        memory, speed = o.peak_memory_bytes / 1e9, o.throughput_samples_per_s
        title = f"{o.plan}: {speed:.4g} samples/s, {memory:.4g} GB"
        parts.append(chart.dot(memory, speed, f'class="{kind}"', title))
    return parts
