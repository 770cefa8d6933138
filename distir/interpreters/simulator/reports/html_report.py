"""The HTML report of a simulation: a single file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distir.errors import DistIRError
from distir.interpreters.simulator.engine.run import DeviceGroup
from distir.interpreters.simulator.reports.argument_layouts import (
    ArgumentLayout,
    argument_layouts,
)
from distir.interpreters.simulator.reports.communication_report import (
    CommunicationRecorder,
)
from distir.interpreters.simulator.reports.memory_report import (
    GroupMemory,
    MemoryRecorder,
)
from distir.interpreters.simulator.reports.program_description import (
    describe_program,
    device_ranges,
    shape_text,
)
from distir.interpreters.simulator.reports.time_report import (
    TICKS_PER_SECOND,
    Block,
    GroupTime,
    TimeRecorder,
)
from distir.interpreters.simulator.reports.value_kinds import KINDS
from distir.interpreters.simulator.simulation import Simulation
from distir.system.output_files import write_text

SHOWN_GROUPS = 32
"""The most groups of devices with a timeline. Further groups have only numbers."""

LISTED_GROUPS = 1024
"""The most groups of devices that are listed with numbers."""

SHOWN_BLOCKS = 40_000
"""
The approximate number of ops that are shown one by one. If there are more, short ones
are combined.
"""

SHOWN_CAUSES = 300
"""
The most causes of time that are listed for each group. One more row sums up the rest.
"""

TEMPLATES = Path(__file__).parent / "templates"
"""
The folder with the page of the report, its script, and the drawings and their styles,
which other pages share (`drawings.js`, `drawings.css`).
"""


def write_html(simulation: Simulation, path: str | Path, title: str) -> None:
    """
    Writes the HTML report of a simulation to `path`. The program is executed once more.
    Raises DistIRError if the file cannot be written.
    """
    page = html_report(simulation, title)
    try:
        write_text(path, page)
    except OSError as error:
        raise DistIRError(f"cannot write {path}: {error.strerror}") from error


def html_report(simulation: Simulation, title: str) -> str:
    """
    Returns the report as an HTML page. Strings of the program are embedded as data,
    never as markup.
    """
    text = json.dumps(report_data(simulation, title), separators=(",", ":"))
    # Escaped, so that no string can end the element that holds the data.
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    script = _template("drawings.js") + _template("report.js")
    page = _template("report.html").replace("/*STYLE*/\n", _template("drawings.css"))
    return page.replace("/*SCRIPT*/\n", script).replace("/*DATA*/", text)


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text("utf-8")


def report_data(
    simulation: Simulation, title: str, blocks: int | None = None
) -> dict[str, Any]:
    """
    Returns the data of the report as values that JSON can represent. The timelines have
    about `blocks` blocks (`SHOWN_BLOCKS` if `blocks` is None).
    """
    most = SHOWN_BLOCKS if blocks is None else blocks
    groups = simulation.groups
    shown = groups[:SHOWN_GROUPS]
    is_short = simulation.ops * len(shown) <= most
    resolution = 2 * simulation.step_time_s * len(shown) / most
    time = TimeRecorder(shown, 0.0 if is_short else resolution)
    memory = MemoryRecorder(simulation, shown)
    sent = CommunicationRecorder(shown)
    simulation.run.follow(time, memory, sent)
    report = time.report()
    names = _Names()
    return {
        "title": title,
        "cluster": simulation.cluster,
        "step_time_s": simulation.step_time_s,
        "throughput_samples_per_s": simulation.throughput_samples_per_s,
        "mfu": simulation.mfu,
        "hfu": simulation.hfu,
        "exposed_communication": simulation.exposed_communication,
        "bubble_fraction": simulation.bubble_fraction,
        "ops": simulation.ops,
        "devices": len(simulation.devices),
        "too_small": device_ranges(simulation.too_small),
        "configuration": describe_program(simulation.run),
        "groups": [_numbers(simulation, group) for group in groups[:LISTED_GROUPS]],
        "groups_in_all": len(groups),
        "resolution_s": 0.0 if is_short else resolution,
        "busiest": report.groups.index(report.busiest),
        "kinds": KINDS,
        "timelines": [
            {
                "blocks": [_block(block, names) for block in group.blocks],
                "sends": [_block(block, names) for block in group.sends],
                "calls": [_block(block, names) for block in group.calls],
            }
            for group in report.groups
        ],
        "causes": [_causes(group) for group in report.groups],
        "arguments": [_argument(a) for a in argument_layouts(simulation.run.module)],
        "sent": [
            [entry.scope, entry.op, ",".join(entry.axes), entry.times, entry.size]
            for entry in sent.report()
        ],
        "memory": [_memory(group) for group in memory.report().groups],
        "names": names.listed,
    }


def _argument(entry: ArgumentLayout) -> list[Any]:
    """Returns one row of the table of arguments."""
    return [
        entry.name,
        len(entry.names),
        entry.role,
        shape_text(entry.shape),
        entry.split_text,
        shape_text(entry.local_shape),
        entry.local_bytes,
    ]


def _numbers(simulation: Simulation, group: DeviceGroup) -> dict[str, Any]:
    i = group.index
    return {
        "name": group.name,
        "devices": device_ranges(group.devices),
        "count": len(group.devices),
        "peak_memory_bytes": simulation.peak_memory_bytes[i],
        "memory_bytes": simulation.memory_bytes[i],
        "communication_bytes": simulation.communication_bytes[i],
        "flops": simulation.flops[i],
        "compute_s": simulation.compute_s[i],
        "exposed_communication_s": simulation.exposed_communication_s[i],
        "waiting_s": simulation.waiting_s[i],
    }


class _Names:
    """Collects strings that occur many times, and gives each string an index."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self._known.setdefault(name, len(self._known))

    @property
    def listed(self) -> Sequence[str]:
        return list(self._known)


def _seconds(ticks: int) -> float:
    return ticks / TICKS_PER_SECOND


def _block(block: Block, names: _Names) -> list[float | int]:
    """
    Returns a block of the timeline as a list: the begin and the duration of the block
    in seconds, the seconds of communication, the indices of the block's label and
    function in `names`, and the number of ops.
    """
    return [
        _seconds(block.begin),
        _seconds(block.end - block.begin),
        _seconds(block.communication),
        names(block.label),
        names(block.function),
        block.ops,
    ]


def _causes(group: GroupTime) -> list[list[Any]]:
    """
    Returns the rows of a group's table of time: scope, op, and the seconds of
    computation, communication and waiting. The row with the largest sum comes first.
    """
    rows = sorted(group.spent.items(), key=lambda item: -item[1].total)
    found: list[list[Any]] = [
        [
            cause.scope,
            cause.op,
            _seconds(spent.compute),
            _seconds(spent.exposed_communication),
            _seconds(spent.waiting),
        ]
        for cause, spent in rows
    ]
    rest = found[SHOWN_CAUSES:]
    if rest:
        sums = [sum(row[i] for row in rest) for i in (2, 3, 4)]
        found[SHOWN_CAUSES:] = [["", f"{len(rest)} more", *sums]]
    return found


def _memory(memory: GroupMemory) -> dict[str, Any]:
    # One curve over the step for each kind of value.
    return memory.to_json() | {"curve": memory.curve.T.tolist()}
