"""Draws boxes in rows, joined by arrows: chains of passes, floors of a house."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from website.drawings.canvas import Panel, arrow, box, label

_WIDTH, _HEIGHT, _GAP, _LABELLED_GAP = 860, 46, 34, 84


def box_panel(told: Mapping[str, Any]) -> Panel:
    """
    Returns rows of boxes. `told` has a `title`, the `rows`, each a list of texts (two
    lines where a text has a line break), and `arrows`: "right" for arrows from box to box
    in a row, "down" for one arrow from row to row, or "none". `labels` are the words above
    the arrows of a row.
    """
    labels = told.get("labels", [])
    between = _LABELLED_GAP if labels else _GAP
    parts = [label(16, 26, told["title"], "title")]
    y = 46
    for number, row in enumerate(told["rows"]):
        width = (_WIDTH - 32 - between * (len(row) - 1)) / len(row)
        for place, text in enumerate(row):
            x = 16 + place * (width + between)
            parts.append(box(x, y, width, _HEIGHT, "#eef3f8", "sheet"))
            lines = text.split("\n")
            for index, shown in enumerate(lines):
                below = y + _HEIGHT / 2 + 5 + 16 * (index - (len(lines) - 1) / 2)
                kind = "small" if index else ""
                parts.append(label(x + width / 2, below, shown, kind, "middle"))
            if told["arrows"] == "right" and place:
                parts.append(
                    arrow(x - _GAP + 4, y + _HEIGHT / 2, x - 4, y + _HEIGHT / 2)
                )
        if told["arrows"] == "down" and number:
            parts.append(arrow(_WIDTH / 2, y - _GAP + 4, _WIDTH / 2, y - 4))
        y += _HEIGHT + _GAP
    return Panel(_WIDTH, y - _GAP + 18, parts)
