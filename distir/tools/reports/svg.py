"""Helpers that return parts of a drawing as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

STYLE = "text { font: 13px sans-serif; fill: #222 } .grid { stroke: #ddd } "
"""The CSS rules for texts and grid lines."""


class LogAxis:
    """A logarithmic axis from pixel `start` to pixel `end`."""

    def __init__(self, values: Sequence[float], start: float, end: float):
        self.low = floor(log10(min(values)) * 4) / 4
        self.high = max(ceil(log10(max(values)) * 4) / 4, self.low + 0.25)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        """Returns the pixel position of `value`."""
        share = (log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Returns the values to label on the axis: 1, 2 or 5 times a power of ten."""
        decades = range(floor(self.low), ceil(self.high) + 1)
        digits = (1, 2, 5) if self.high - self.low < 3 else (1,)
        found = [digit * 10.0**n for n in decades for digit in digits]
        return [v for v in found if self.low <= log10(v) <= self.high]


class Chart:
    """
    A plotting area with two logarithmic axes. Its margins are `LEFT`, `right`, `top`
    and `BOTTOM` pixels wide.
    """

    LEFT, BOTTOM = 90, 60

    def __init__(
        self,
        width: int,
        height: int,
        right: int,
        top: int,
        xs: Sequence[float],
        ys: Sequence[float],
    ):
        self.x = LogAxis(xs, self.LEFT, width - right)
        self.y = LogAxis(ys, height - self.BOTTOM, top)

    def grid(self, x_title: str, y_title: str) -> list[str]:
        """
        Returns the grid lines, the numbers and the titles of the axes, as SVG elements.
        """
        x, y = self.x, self.y
        parts: list[str] = []
        for value in x.ticks():
            parts.append(line(x(value), y.start, x(value), y.end, "grid"))
            parts.append(text(x(value), y.start + 20, f"{value:g}", "middle"))
        for value in y.ticks():
            parts.append(line(x.start, y(value), x.end, y(value), "grid"))
            parts.append(text(x.start - 8, y(value) + 4, f"{value:g}", "end"))
        parts.append(text((x.start + x.end) / 2, y.start + 44, x_title, "middle"))
        middle = (y.start + y.end) / 2
        parts.append(
            f'<text text-anchor="middle" transform="translate(22 {middle:.1f}) '
            f'rotate(-90)">{escape(y_title)}</text>'
        )
        return parts

    def dot(self, x: float, y: float, look: str, title: str) -> str:
        """
        Returns a dot at the point (`x`, `y`), as an SVG element. `look` has the
        attributes for its look. `title` is its tooltip.
        """
        return (
            f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3.5" {look}>'
            f"<title>{escape(title)}</title></circle>"
        )


def document(width: int, height: int, style: str | None, parts: Sequence[str]) -> str:
    """
    Returns a complete drawing on a white background, as SVG text. `style` has further
    CSS rules. If `style` is None, the drawing has no rules, because the page that shows
    the drawing has them.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            *([] if style is None else [f"<style>{STYLE}{style}</style>"]),
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Returns a line as an SVG element. `kind` is its class in the style sheet."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, shown: str, anchor: str) -> str:
    """
    Returns a text as an SVG element. `anchor` says which point of the text is at (`x`,
    `y`): its start, middle or end.
    """
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown)}</text>'
    )
