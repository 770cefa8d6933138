"""Draws a scatter plot of predictions over measurements, as an SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from distir.tools.reports.svg import Chart, document, line, text

_WIDTH, _HEIGHT = 820, 560
_RIGHT, _TOP = 220, 50
_COLORS = (
    "#4878a8", "#d65f00", "#3a923a", "#b04040",
    "#7a5aa6", "#8c613c", "#c05a9c", "#5b5b5b",
)  # fmt: skip
_STYLE = ".same { stroke: #888; stroke-dasharray: 5 4 }"

Point = tuple[str, float, float]
"""A label, the measurement, and the prediction."""


def scatter_plot(title: str, unit: str, series: Mapping[str, Sequence[Point]]) -> str:
    """
    Returns a plot with a dot for each point, both axes logarithmic; on the dashed line both
    are the same.
    """
    points = [p for some in series.values() for p in some]
    values = [v for _, *pair in points for v in pair]
    chart = Chart(_WIDTH, _HEIGHT, _RIGHT, _TOP, values, values)
    x, y = chart.x, chart.y
    parts = [
        f'<text x="{Chart.LEFT}" y="28" style="font-weight: bold">{escape(title)}</text>',
        *chart.grid(f"measured [{unit}]", f"predicted [{unit}]"),
        line(x.start, y.start, x.end, y.end, "same"),
    ]
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
            look = f'fill="{color}" fill-opacity="0.8"'
            parts.append(chart.dot(measured, predicted, look, shown))
    return document(_WIDTH, _HEIGHT, _STYLE, parts)
