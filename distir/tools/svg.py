"""Parts of the drawings that the tools write, as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10


class LogAxis:
    """A logarithmic axis from pixel `start` to pixel `end`."""

    def __init__(self, values: Sequence[float], start: float, end: float):
        self.low = floor(log10(min(values)) * 4) / 4
        self.high = max(ceil(log10(max(values)) * 4) / 4, self.low + 0.25)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = (log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Values to write beside the axis: 1, 2 or 5 times a power of ten."""
        decades = range(floor(self.low), ceil(self.high) + 1)
        digits = (1, 2, 5) if self.high - self.low < 3 else (1,)
        found = [digit * 10.0**n for n in decades for digit in digits]
        return [v for v in found if self.low <= log10(v) <= self.high]


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A line of a class of the style sheet."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, shown: str, anchor: str) -> str:
    """A text whose start, middle or end is at a point."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown)}</text>'
    )
