"""Draws the results of a search as an SVG file: throughput over peak memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from distir.errors import DistIRError
from distir.planning.grid import Result, Simulated, pareto_front
from distir.planning.plans.result import simulated
from distir.system.output_files import write_text
from distir.tools.reports.svg import Chart, document, line

_SIZE = 800, 520
_SMALL = 560, 400
"""The width and the height of plots, as files and in a column of a page."""

_STYLE = (
    ".limit { stroke: #b00; stroke-dasharray: 5 4 } .large { fill: #ccc } "
    ".fits { fill: #4878a8 } .front { fill: #d65f00 } "
    ".line { fill: none; stroke: #d65f00; stroke-width: 1.5 }"
)


def write_pareto_plot(path: Path, results: Sequence[Result]) -> None:
    """
    Writes an SVG file with a dot for each result: throughput over peak memory. Both
    axes are logarithmic. Results that do not fit into memory are grey. The Pareto front
    of the results that fit is orange. A dot's tooltip names its plan. Raises
    DistIRError if the file cannot be written.
    """
    try:
        write_text(path, pareto_plot(results))
    except OSError as error:
        raise DistIRError(f"cannot write {path}: {error.strerror}") from error


@dataclass(frozen=True, eq=False)
class Mark:
    """
    A dot of a plot.

    - `result`: the result that the dot shows; `title`: the tooltip;
    - `link`: the address that the dot links to, or "";
    - `looks`: further CSS classes of the dot's element.
    """

    result: Simulated
    title: str
    link: str = ""
    looks: str = ""


def pareto_plot(results: Sequence[Result]) -> str:
    """Returns the plot of throughput over peak memory as SVG text."""
    heading = (
        f"{len(results)} configurations, {sum(o.fits for o in results)} fit into memory"
    )
    marks = [
        Mark(
            o,
            f"{o.plan}: {o.throughput_samples_per_s:.4g} samples/s, "
            f"{o.peak_memory_bytes / 1e9:.4g} GB",
        )
        for o in simulated(results)
    ]
    return _plot(
        marks,
        heading,
        "throughput [samples/s]",
        lambda o: o.throughput_samples_per_s,
        pareto_front(results),
    )


def time_plot(marks: Sequence[Mark], front: Sequence[Simulated]) -> str:
    """
    Returns the plot of step time over peak memory as SVG text, without style rules. A
    line joins the results in `front`.
    """
    height = "step time [s]"
    return _plot(marks, "", height, lambda o: o.step_time_s, front, _SMALL, None)


def _plot(
    marks: Sequence[Mark],
    heading: str,
    y_title: str,
    value: Callable[[Simulated], float],
    front: Sequence[Simulated],
    size: tuple[int, int] = _SIZE,
    style: str | None = _STYLE,
) -> str:
    """
    Returns a plot over peak memory as SVG text. `value` returns the height of a
    result's dot. `heading` is the text above the plot, if any.
    """
    drawn = [m for m in marks if value(m.result) > 0 and m.result.peak_memory_bytes]
    parts: list[str] = []
    if heading:
        parts = [
            f'<text x="{Chart.LEFT}" y="24" style="font-weight: bold">{heading}</text>',
            f'<text x="{Chart.LEFT}" y="44">orange: Pareto front; grey: does not fit</text>',
        ]
    if drawn:
        limits = sorted({m.result.memory_bytes / 1e9 for m in drawn})
        memory = [*(m.result.peak_memory_bytes / 1e9 for m in drawn), *limits]
        values = [value(m.result) for m in drawn]
        top = 60 if heading else 20
        chart = Chart(*size, 30, top, memory, values)
        parts += chart.grid("peak memory [GB]", y_title)
        for at in map(chart.x, limits):
            parts.append(line(at, chart.y.start, at, chart.y.end, "limit"))
        parts += _dots(drawn, chart, value, front)
    return document(*size, style, parts)


def _dots(
    drawn: Sequence[Mark],
    chart: Chart,
    value: Callable[[Simulated], float],
    front: Sequence[Simulated],
) -> list[str]:
    # The most important dots are drawn last, above the rest.
    order = {"large": 0, "fits": 1, "front": 2}
    best = {id(o) for o in front}
    kinds = [
        (
            "front" if id(m.result) in best else "fits" if m.result.fits else "large",
            m,
        )
        for m in drawn
    ]
    points = [(chart.x(o.peak_memory_bytes / 1e9), chart.y(value(o))) for o in front]
    parts: list[str] = []
    if len(points) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline class="line" points="{path}"/>')
    for kind, m in sorted(
        kinds, key=lambda pair: (bool(pair[1].looks), order[pair[0]])
    ):
        look = f'class="{kind}{f" {m.looks}" if m.looks else ""}"'
        memory = m.result.peak_memory_bytes / 1e9
        dot = chart.dot(memory, value(m.result), look, m.title)
        if m.link:
            dot = f'<a href="{escape(m.link)}">{dot}</a>'
        parts.append(dot)
    return parts
