"""A scatter plot of predictions over measurements, as an SVG file on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from distir.tools.svg import LogAxis, line, text

_WIDTH, _HEIGHT = 820, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 220, 50, 60
_COLORS = (
    "#4878a8", "#d65f00", "#3a923a", "#b04040",
    "#7a5aa6", "#8c613c", "#c05a9c", "#5b5b5b",
)  # fmt: skip
_STYLE = (
    "text { font: 13px sans-serif; fill: #222 } .grid { stroke: #ddd } "
    ".same { stroke: #888; stroke-dasharray: 5 4 }"
)

Point = tuple[str, float, float]
"""What it is, measured, predicted."""


def scatter_plot(title: str, unit: str, series: Mapping[str, Sequence[Point]]) -> str:
    """A dot for each point, both axes logarithmic; on the dashed line both are the same."""
    points = [p for some in series.values() for p in some]
    values = [v for _, *pair in points for v in pair]
    x = LogAxis(values, _LEFT, _WIDTH - _RIGHT)
    y = LogAxis(values, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="28" style="font-weight: bold">{escape(title)}</text>',
    ]
    for value in x.ticks():
        parts.append(line(x(value), y.start, x(value), y.end, "grid"))
        parts.append(text(x(value), _HEIGHT - _BOTTOM + 20, f"{value:g}", "middle"))
    for value in y.ticks():
        parts.append(line(x.start, y(value), x.end, y(value), "grid"))
        parts.append(text(_LEFT - 8, y(value) + 4, f"{value:g}", "end"))
    parts.append(line(x.start, y.start, x.end, y.end, "same"))
    middle = (x.start + x.end) / 2
    parts.append(text(middle, _HEIGHT - 16, f"measured [{unit}]", "middle"))
    parts.append(
        f'<text text-anchor="middle" transform="translate(22 {(y.start + y.end) / 2:.1f}) '
        f'rotate(-90)">predicted [{escape(unit)}]</text>'
    )
    for i, (name, some) in enumerate(series.items()):
        color = _COLORS[i % len(_COLORS)]
        at = _TOP + 10 + 22 * i
        parts.append(
            f'<circle cx="{_WIDTH - _RIGHT + 20}" cy="{at}" r="4" fill="{color}"/>'
        )
        parts.append(text(_WIDTH - _RIGHT + 32, at + 4, name, "start"))
        for label, measured, predicted in some:
            shown = (
                f"{name}, {label}: measured {measured:.4g}, predicted {predicted:.4g}"
            )
            parts.append(
                f'<circle cx="{x(measured):.1f}" cy="{y(predicted):.1f}" r="3.5" '
                f'fill="{color}" fill-opacity="0.8"><title>{escape(shown)}</title></circle>'
            )
    return "\n".join([*parts, "</svg>", ""])
