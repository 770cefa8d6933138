"""
The drawings of the documentation. Each is a TOML file in docs/figures that says what to
draw, and an SVG file beside it that `make drawings` writes. A test compares the two.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distir.tools.reports.svg import document
from website.drawings.boxes import box_panel
from website.drawings.canvas import Panel
from website.drawings.layouts import layout_panel
from website.drawings.schedules import schedule_panel
from website.drawings.timelines import timeline_panel

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
"""The folder of the drawings and their sources."""

_PANELS: dict[str, Callable[[Mapping[str, Any]], Panel]] = {
    "boxes": box_panel,
    "layouts": layout_panel,
    "schedule": schedule_panel,
    "timeline": timeline_panel,
}

_STYLE = (
    ".title { font-size: 15px; font-weight: 600 } "
    ".small { font-size: 11px; fill: #555 } "
    ".code { font: 12px ui-monospace, monospace } "
    ".cell { stroke: #fff; stroke-width: 1 } "
    ".sheet { fill: #f2f2f2; stroke: #bbb } "
    ".arrow { stroke: #666; stroke-width: 1.5; fill: none } "
    ".head { fill: #666 }"
)


def draw(source: Path) -> str:
    """
    Returns the SVG text of the drawing that a TOML file describes: panels below each
    other. Raises KeyError for a panel of an unknown kind.
    """
    told = tomllib.loads(source.read_text("utf-8"))
    return picture([_PANELS[panel["kind"]](panel) for panel in told["panel"]])


def picture(panels: Sequence[Panel]) -> str:
    """Returns the SVG text of a drawing with these panels below each other."""
    width = max(panel.width for panel in panels)
    parts: list[str] = []
    top = 0
    for panel in panels:
        parts.append(f'<g transform="translate(0 {top})">')
        parts += panel.parts
        parts.append("</g>")
        top += panel.height
    return document(width, top, _STYLE, parts)


def sources() -> list[Path]:
    """Returns the TOML files of all drawings."""
    return sorted(FIGURES.glob("*.toml"))
