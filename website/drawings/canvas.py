"""What panels are made of: texts, boxes, arrows, and the colours of devices."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

COLOURS = (
    "#4477aa",
    "#ee8866",
    "#44aa77",
    "#bb5588",
    "#66bbcc",
    "#997722",
    "#8877cc",
    "#777777",
)
"""A colour per device, told apart by people who are colour-blind too."""

FORWARD, BACKWARD, OTHER, SENT = "#4477aa", "#ee8866", "#44aa77", "#222222"
"""The colours of work in a timeline: forward, backward, other work, and messages."""


@dataclass(frozen=True)
class Panel:
    """A part of a drawing: SVG elements, and its width and height in pixels."""

    width: int
    height: int
    parts: list[str]


def label(
    x: float,
    y: float,
    shown: str,
    kind: str = "",
    anchor: str = "start",
    fill: str = "",
) -> str:
    """
    Returns a text as an SVG element. `kind` is its class in the style sheet, `anchor`
    the point of the text that is at (`x`, `y`), and `fill` its colour, if not black.
    """
    colour = f' style="fill: {fill}"' if fill else ""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{colour}>'
        f"{escape(shown)}</text>"
    )


def box(
    x: float, y: float, width: float, height: float, fill: str, kind: str = "cell"
) -> str:
    """Returns a rectangle as an SVG element. `kind` is its class in the style sheet."""
    return (
        f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" '
        f'height="{height:.2f}" fill="{fill}"/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Returns an arrow that points right or down, as SVG elements."""
    if y1 == y2:
        head = f"{x2:.1f},{y2:.1f} {x2 - 8:.1f},{y2 - 4:.1f} {x2 - 8:.1f},{y2 + 4:.1f}"
    else:
        head = f"{x2:.1f},{y2:.1f} {x2 - 4:.1f},{y2 - 8:.1f} {x2 + 4:.1f},{y2 - 8:.1f}"
    return (
        f'<line class="arrow" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        f'<polygon class="head" points="{head}"/>'
    )


def legend(x: float, y: float, entries: list[tuple[str, str]]) -> list[str]:
    """
    Returns the legend of a panel: a square of each colour and the meaning beside it.
    `entries` has colours and meanings.
    """
    parts: list[str] = []
    for colour, meaning in entries:
        parts.append(box(x, y - 10, 11, 11, colour))
        parts.append(label(x + 16, y, meaning, "small"))
        x += 30 + 6.2 * len(meaning)
    return parts
