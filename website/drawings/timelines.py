"""Draws the timeline of a simulated step: a row per device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distir.tools.reports.svg import line
from website.commands import run
from website.drawings.canvas import (
    BACKWARD,
    FORWARD,
    OTHER,
    SENT,
    Panel,
    box,
    label,
    legend,
)

_ROW, _LEFT, _WIDTH = 34, 90, 620


def timeline_panel(told: Mapping[str, Any]) -> Panel:
    """
    Returns the timeline of the program that the `commands` make, the last of which is a
    `distir simulate` that is given `--trace` here. The upper part of a row is what the
    device computes, the lower part its messages.
    """
    *before, simulate = told["commands"]
    with TemporaryDirectory(prefix="distir-") as name:
        trace = Path(name) / "trace.json"
        for command in before:
            run(command.replace("FOLDER", name))
        run(f"{simulate.replace('FOLDER', name)} --trace {trace}")
        return trace_panel(told["title"], trace)


def trace_panel(title: str, trace: Path) -> Panel:
    """Returns the timeline of a trace that `distir simulate` wrote."""
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    end = max(event["ts"] + event["dur"] for event in spans)
    devices = sorted({event["pid"] for event in spans})
    parts = [label(16, 26, title, "title")]
    for row, device in enumerate(devices):
        y = 44 + row * _ROW
        parts.append(label(16, y + 18, f"device {device}", "small"))
        parts.append(box(_LEFT, y, _WIDTH, _ROW - 6, "#f2f2f2"))
        own = [event for event in spans if event["pid"] == device]
        for colour, start, stop in _joined(own, end / _WIDTH):
            x, width = _LEFT + start / end * _WIDTH, (stop - start) / end * _WIDTH
            top, height = (y + 19, 9) if colour == SENT else (y, 18)
            parts.append(box(x, top, width, height, colour, ""))
    bottom = 44 + len(devices) * _ROW
    parts.append(line(_LEFT, bottom, _LEFT + _WIDTH, bottom, "grid"))
    parts.append(
        label(_LEFT + _WIDTH, bottom + 18, f"{end / 1e3:.3g} ms", "small", "end")
    )
    meanings = [
        (FORWARD, "forward"),
        (BACKWARD, "backward"),
        (OTHER, "loss, optimizer, others"),
        (SENT, "messages"),
    ]
    parts += legend(_LEFT, bottom + 18, meanings)
    return Panel(_LEFT + _WIDTH + 16, bottom + 34, parts)


def _joined(events: list[dict[str, Any]], gap: float) -> list[tuple[str, float, float]]:
    """
    Returns the colours, starts and ends of the boxes of one device. Events of one colour
    that are less than `gap` apart are one box.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        start, stop = event["ts"], event["ts"] + event["dur"]
        boxes = found.setdefault(_colour(event), [])
        if boxes and start - boxes[-1][1] < gap:
            boxes[-1] = boxes[-1][0], max(stop, boxes[-1][1])
        else:
            boxes.append((start, stop))
    return [(colour, *span) for colour, boxes in found.items() for span in boxes]


def _colour(event: dict[str, Any]) -> str:
    """Returns the colour of an event: that of messages, or of the function that calls it."""
    if event["cat"] == "communication":
        return SENT
    calls = event["args"]["calls"]
    if "backward" in calls:
        return BACKWARD
    return FORWARD if "forward" in calls else OTHER
