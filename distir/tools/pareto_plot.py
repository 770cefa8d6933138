"""A drawing of a search: throughput over peak memory, as an SVG file on its own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from distir.errors import DistIRError
from distir.passes.search import Outcome, pareto_front
from distir.tools.svg import LogAxis, line, text

_WIDTH, _HEIGHT = 800, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 30, 60, 60
_STYLE = (
    "text { font: 13px sans-serif; fill: #222 } .grid { stroke: #ddd } "
    ".limit { stroke: #b00; stroke-dasharray: 5 4 } .large { fill: #ccc } "
    ".fits { fill: #4878a8 } .front { fill: #d65f00 } "
    ".line { fill: none; stroke: #d65f00; stroke-width: 1.5 }"
)


def write_pareto_plot(path: Path, outcomes: Sequence[Outcome]) -> None:
    """
    Draws a dot for each outcome, both axes logarithmic: those that do not fit in grey,
    the Pareto front of the others in orange. A dot's title names its configuration.
    Raises DistIRError.
    """
    try:
        path.write_text(pareto_plot(outcomes), "utf-8")
    except OSError as error:
        raise DistIRError(f"cannot write {path}: {error.strerror}") from error


def pareto_plot(outcomes: Sequence[Outcome]) -> str:
    """The drawing as SVG text."""
    drawn = [
        o for o in outcomes if o.throughput_samples_per_s > 0 and o.peak_memory_bytes
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" style="font-weight: bold">{len(outcomes)} '
        f"configurations, {sum(o.fits for o in outcomes)} fit into memory</text>",
        f'<text x="{_LEFT}" y="44">orange: Pareto front; grey: does not fit</text>',
    ]
    if drawn:
        limits = sorted({o.memory_bytes / 1e9 for o in drawn})
        x = LogAxis(
            [o.peak_memory_bytes / 1e9 for o in drawn] + limits,
            _LEFT,
            _WIDTH - _RIGHT,
        )
        y = LogAxis(
            [o.throughput_samples_per_s for o in drawn], _HEIGHT - _BOTTOM, _TOP
        )
        parts += [*_frame(x, y, limits), *_dots(drawn, x, y)]
    return "\n".join([*parts, "</svg>", ""])


def _frame(x: LogAxis, y: LogAxis, limits: Sequence[float]) -> list[str]:
    parts: list[str] = []
    for value in x.ticks():
        at = x(value)
        parts.append(line(at, y.start, at, y.end, "grid"))
        parts.append(text(at, _HEIGHT - _BOTTOM + 20, f"{value:g}", "middle"))
    for value in y.ticks():
        at = y(value)
        parts.append(line(x.start, at, x.end, at, "grid"))
        parts.append(text(_LEFT - 8, at + 4, f"{value:g}", "end"))
    for limit in limits:
        parts.append(line(x(limit), y.start, x(limit), y.end, "limit"))
    middle = (y.start + y.end) / 2
    parts.append(
        text((x.start + x.end) / 2, _HEIGHT - 16, "peak memory [GB]", "middle")
    )
    parts.append(
        f'<text text-anchor="middle" transform="translate(22 {middle:.1f}) rotate(-90)">'
        f"throughput [samples/s]</text>"
    )
    return parts


def _dots(drawn: Sequence[Outcome], x: LogAxis, y: LogAxis) -> list[str]:
    front = pareto_front(drawn)
    # What matters most is drawn last, above the rest.
    order = {"large": 0, "fits": 1, "front": 2}
    kinds = [
        ("front" if o in front else "fits" if o.fits else "large", o) for o in drawn
    ]
    points = [
        (x(o.peak_memory_bytes / 1e9), y(o.throughput_samples_per_s)) for o in front
    ]
    parts: list[str] = []
    if len(points) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline class="line" points="{path}"/>')
    for kind, o in sorted(kinds, key=lambda pair: order[pair[0]]):
        at = x(o.peak_memory_bytes / 1e9), y(o.throughput_samples_per_s)
        title = (
            f"{o.configuration}: {o.throughput_samples_per_s:.4g} samples/s, "
            f"{o.peak_memory_bytes / 1e9:.4g} GB"
        )
        parts.append(
            f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3.5">'
            f"<title>{escape(title)}</title></circle>"
        )
    return parts
