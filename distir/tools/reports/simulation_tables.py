"""Prints the results of `distir simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from distir.tools.reports.reporting import (
    bytes_text,
    flops_text,
    note,
    seconds_text,
    table,
)

if TYPE_CHECKING:
    from distir.interpreters.simulator import Difference, MemoryReport, Simulation
    from distir.interpreters.simulator.reports.difference import Side
    from distir.interpreters.simulator.reports.memory_report import GroupMemory
    from distir.interpreters.simulator.reports.time_report import Spent

_LISTED = 32
"""The largest number of lines in a table of devices."""

_SCOPES = 12
_CAUSES = 12


def print_simulation(result: Simulation) -> None:
    """
    Prints the time of the step and a line for each device. If there are many devices,
    devices that do the same work share a line.
    """
    print(
        f"step time {seconds_text(result.step_time_s)}, "
        f"{result.throughput_samples_per_s:.4g} samples/s, {result.ops} ops on "
        f"{len(result.devices)} devices of @{result.cluster}, "
        f"{_basis(result)}"
    )
    again = f" (HFU {_percent(result.hfu)})" if any(result.recomputed_at_peak) else ""
    print(
        f"MFU {_percent(result.mfu)}{again}, exposed communication "
        f"{_percent(result.exposed_communication)}, bubble "
        f"{_percent(result.bubble_fraction)} of the step"
    )
    if len(result.devices) <= _LISTED:
        rows = [
            [str(device), *_row(result, i)] for i, device in enumerate(result.devices)
        ]
    else:
        groups = result.groups
        rows = [[_devices(g.devices), *_row(result, g.index)] for g in groups[:_LISTED]]
        if len(groups) > _LISTED:
            more = len(groups) - _LISTED
            note(f"{more} more groups of devices; --json writes every device")
    table(
        [
            "device",
            "peak memory",
            "sends",
            "FLOPs",
            "computes",
            "communicates",
            "waits",
        ],
        rows,
    )
    for devices, whose in (
        (result.too_small, "device"),
        (result.hosts_too_small, "the host of device"),
    ):
        if devices:
            few = ", ".join(map(str, devices[:8]))
            more = ", ..." if len(devices) > 8 else ""
            note(f"the program does not fit into the memory of {whose} {few}{more}")


def _basis(result: Simulation) -> str:
    """Returns the source of the predicted times as text: data sheets or profiles."""
    if not result.profiles:
        return "as data sheets say"
    kind = "profile" if len(result.profiles) == 1 else "profiles"
    basis = f"with the {kind} {' and '.join(result.profiles)}"
    if result.unknown_links:
        names = " and ".join(result.unknown_links)
        basis += f", and as data sheets say for {names}, a link that it does not know"
    return basis


def _row(result: Simulation, index: int) -> list[str]:
    """
    Returns the cells of a device's line. `index` is its index in the lists of `result`.
    """
    peak, memory = result.peak_memory_bytes[index], result.memory_bytes[index]
    reserved = result.reserved_memory_bytes[index]
    kept = "" if reserved == peak else f" ({bytes_text(reserved)} reserved)"
    host = result.host_bytes[index]
    there = f", {bytes_text(host)} in its host" if host else ""
    return [
        f"{bytes_text(peak)}{kept} of {bytes_text(memory)}{there}",
        bytes_text(result.communication_bytes[index]),
        flops_text(result.flops[index]),
        seconds_text(result.compute_s[index]),
        seconds_text(result.exposed_communication_s[index]),
        seconds_text(result.waiting_s[index]),
    ]


def print_memory(report: MemoryReport) -> None:
    """
    Prints the values in memory at the peak: by kind for all devices, and by module for
    the devices with the highest peak. Then prints options that would save memory.
    """
    kinds = [kind for kind in report.largest.by_kind if _is_anywhere(kind, report)]
    print("\nmemory at the peak")
    groups = report.groups
    table(
        ["devices", "peak", *kinds],
        [
            [
                _devices(memory.group.devices),
                bytes_text(memory.peak),
                *(bytes_text(memory.by_kind[kind]) for kind in kinds),
            ]
            for memory in groups[:_LISTED]
        ],
    )
    if len(groups) > _LISTED:
        note(
            f"{len(groups) - _LISTED} more groups of devices; --json writes all of them"
        )
    fullest = report.largest
    when = f"at {seconds_text(fullest.peak_time)}" if fullest.peak_time else "at once"
    by = f" by {fullest.peak_op}" if fullest.peak_op else ""
    devices = _devices(fullest.group.devices)
    print(f"\ndevices {devices} reach {bytes_text(fullest.peak)} {when}{by}; by module")
    _print_scopes(fullest)
    for saving in fullest.savings:
        print(
            f"{saving.kind}: {bytes_text(saving.size)} are {saving.why}; {saving.how}, up "
            f"to {bytes_text(saving.saved)} less"
        )


def _is_anywhere(kind: str, report: MemoryReport) -> bool:
    return any(memory.by_kind[kind] for memory in report.groups)


def _print_scopes(memory: GroupMemory) -> None:
    scopes = memory.by_scope
    rest = sum(size for _, size in scopes[_SCOPES:])
    rows = [[scope or "(none)", bytes_text(size)] for scope, size in scopes[:_SCOPES]]
    if rest:
        rows.append([f"{len(scopes) - _SCOPES} more", bytes_text(rest)])
    table(["module", "bytes"], rows)


def print_difference(
    difference: Difference, names: tuple[str, str], file: IO[str] | None = None
) -> None:
    """
    Prints how much longer the second program takes, and the causes. `names` are the
    names of the two programs. `file` is the output, stdout by default.
    """
    from distir.interpreters.simulator.reports.time_report import Spent

    first, second = difference.first, difference.second
    step = _signed(difference.step)
    share = f" ({difference.step / first.end:+.1%})" if first.end else ""
    print(f"{names[1]} against {names[0]}: {step}{share} per step", file=file)
    table(
        ["", "step", "computes", "communicates", "waits", "peak memory"],
        [
            [_side(names[0], first), *_times(first), bytes_text(first.peak)],
            [_side(names[1], second), *_times(second), bytes_text(second.peak)],
            [
                "difference",
                step,
                *_parts(difference.total),
                _signed_bytes(second.peak - first.peak),
            ],
        ],
        file,
    )
    causes = difference.causes
    rows = [
        [f"{cause.op} {cause.scope}".strip(), _signed(change.total), *_parts(change)]
        for cause, change in causes[:_CAUSES]
    ]
    rest = Spent()
    for _, change in causes[_CAUSES:]:
        rest.add(change)
    if causes[_CAUSES:]:
        more = f"{len(causes) - _CAUSES} more"
        rows.append([more, _signed(rest.total), *_parts(rest)])
    if rows:
        print(
            "\nwhat the devices that wait the least spend the difference on", file=file
        )
        table(["op, module", "in all", "computes", "communicates", "waits"], rows, file)
    changes = {kind: size for kind, size in difference.memory.items() if size}
    if changes:
        print("\ndifference of the highest peak memory", file=file)
        table(
            ["kind", "bytes"],
            [[kind, _signed_bytes(size)] for kind, size in changes.items()],
            file,
        )


def _side(name: str, side: Side) -> str:
    return f"{name} (devices {_devices(side.busiest.devices)})"


def _times(side: Side) -> list[str]:
    spent = side.total
    parts = (side.end, spent.compute, spent.exposed_communication, spent.waiting)
    return [seconds_text(ticks * 1e-15) for ticks in parts]


def _parts(spent: Spent) -> list[str]:
    parts = (spent.compute, spent.exposed_communication, spent.waiting)
    return [_signed(ticks) for ticks in parts]


def _signed(ticks: int) -> str:
    """
    Returns a difference of times, given in femtoseconds, as text with a sign. Less than
    a thousand femtoseconds counts as 0, because it comes from rounding.
    """
    if abs(ticks) < 1000:
        return "0"
    return ("+" if ticks > 0 else "-") + seconds_text(abs(ticks) * 1e-15)


def _signed_bytes(size: int) -> str:
    if not size:
        return "0"
    return ("+" if size > 0 else "-") + bytes_text(abs(size))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _devices(devices: Sequence[int]) -> str:
    from distir.interpreters.simulator.reports.program_description import device_ranges

    return device_ranges(devices)
