"""Draws pipeline schedules: a row per rank, a box per action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distir.pipelining import Phase, build_schedule, phase_durations, simulate_schedule
from website.drawings.canvas import BACKWARD, FORWARD, OTHER, Panel, box, label, legend

_ROW, _LEFT, _WIDTH = 30, 90, 620

_LOOKS = {
    Phase.FORWARD: (FORWARD, "forward"),
    Phase.BACKWARD: (BACKWARD, "backward"),
    Phase.BACKWARD_INPUT: (BACKWARD, "backward, for the input"),
    Phase.BACKWARD_WEIGHT: (OTHER, "backward, for the weights"),
}


def schedule_panel(told: Mapping[str, Any]) -> Panel:
    """
    Returns the timeline of a schedule. A forward takes one unit of time, and so does each
    half of a backward; messages take none. `told` has the name of the `schedule`, the
    numbers of `ranks` and `micro_batches`, and a `title`.
    """
    schedule = build_schedule(
        told["schedule"], told["ranks"], told["micro_batches"], told.get("chunks")
    )
    timeline = simulate_schedule(schedule, phase_durations())
    unit = _WIDTH / timeline.makespan
    parts = [label(16, 26, told["title"], "title")]
    found: dict[str, str] = {}
    for rank, actions in enumerate(schedule.actions):
        y = 44 + rank * _ROW
        parts.append(label(16, y + 18, f"rank {rank}", "small"))
        parts.append(box(_LEFT, y, _WIDTH, _ROW - 5, "#f2f2f2"))
        for action in actions:
            colour, meaning = _LOOKS[action.phase]
            found[meaning] = colour
            start, end = timeline.start[action], timeline.end[action]
            x, width = _LEFT + start * unit, (end - start) * unit
            parts.append(box(x, y, width, _ROW - 5, colour))
            number = str(action.micro_batch)
            parts.append(label(x + width / 2, y + 17, number, "", "middle", "#fff"))
    bottom = 44 + schedule.ranks * _ROW + 16
    idle = f"{100 * timeline.bubble_fraction:.0f} % of the time is idle"
    parts.append(label(_LEFT + _WIDTH, bottom, idle, "small", "end"))
    parts += legend(
        _LEFT, bottom, [(colour, meaning) for meaning, colour in found.items()]
    )
    return Panel(_LEFT + _WIDTH + 16, bottom + 16, parts)
