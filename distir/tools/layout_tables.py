"""Prints the tables of `distir show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distir.tools.reporting import bytes_text, table

if TYPE_CHECKING:
    from distir.interpreters.simulator.reports.argument_layouts import ArgumentLayout
    from distir.interpreters.simulator.reports.communication_report import Sent


def print_layouts(layouts: Sequence[ArgumentLayout]) -> None:
    """
    Prints a line for each argument, or for those that are alike in all layers; the last
    column is what one device holds of one of them.
    """
    from distir.interpreters.simulator.reports.program_description import shape_text

    table(
        ["argument", "shape", "split", "on a device", "bytes"],
        [
            [
                _counted(entry.name, len(entry.names)),
                shape_text(entry.shape),
                entry.split_text,
                shape_text(entry.local_shape),
                bytes_text(entry.local_bytes),
            ]
            for entry in layouts
        ],
    )
    by_role: dict[str, int] = {}
    for entry in layouts:
        size = entry.local_bytes * len(entry.names)
        by_role[entry.role] = by_role.get(entry.role, 0) + size
    where = (
        "on one device"
        if not any(len(e.meshes) > 1 for e in layouts)
        else ("on one device of every stage together")
    )
    totals = ", ".join(f"{role} {bytes_text(size)}" for role, size in by_role.items())
    print(f"{where}: {totals}")


def print_communication(sent: Sequence[Sent]) -> None:
    """Prints what a device sends in a step, a line for each module and kind of message."""
    if not sent:
        print("\nno device sends anything")
        return
    print("\nwhat a device sends in a step")
    table(
        ["module", "collective", "over", "messages", "bytes"],
        [
            [
                entry.scope or "(none)",
                entry.op.removeprefix("collective.").removeprefix("dist."),
                ",".join(entry.axes),
                str(entry.times),
                bytes_text(entry.size),
            ]
            for entry in sent
        ],
    )


def _counted(name: str, count: int) -> str:
    return name if count == 1 else f"{name} ({count})"
