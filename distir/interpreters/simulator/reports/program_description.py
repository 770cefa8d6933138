"""Describes a program and its cluster in a few lines, for reports."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from distir.dialects.tensors import shape_of
from distir.interpreters.simulator.engine.run import Run
from distir.program import BATCH_ROLES, arguments_of, functions


def device_ranges(devices: Sequence[int]) -> str:
    """
    Returns device ids as text, with each run of consecutive ids as `first-last`. Only
    the first eight runs are listed.
    """
    parts: list[str] = []
    start = 0
    for i in range(1, len(devices) + 1):
        if i == len(devices) or devices[i] != devices[i - 1] + 1:
            first, last = devices[start], devices[i - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = i
    few = parts[:8]
    return ", ".join(few) + (", ..." if len(parts) > len(few) else "")


def shape_text(shape: Sequence[int]) -> str:
    """
    Returns a shape as text, such as `8 x 16`, or `scalar` if it has no dimensions.
    """
    return " x ".join(map(str, shape)) or "scalar"


def describe_program(run: Run) -> list[tuple[str, str]]:
    """
    Describes the cluster, meshes, functions, inputs and parameters of a program, as
    pairs of a heading and a text.
    """
    hardware, device_map = run.device_map.hardware, run.device_map
    lines = [("cluster", f"@{hardware.name}, {len(hardware.kinds)} devices")]
    for kind in hardware.distinct_kinds(device_map.devices):
        peaks = ", ".join(f"{t} {rate:.4g}" for t, rate in kind.peak_flops.items())
        text = (
            f"memory {kind.memory:.4g} B at {kind.memory_bandwidth:.4g} B/s; FLOP/s: "
            f"{peaks}; launch {kind.launch_latency:.3g} s"
        )
        if kind.allocation_block > 1:
            text += f"; memory in blocks of {kind.allocation_block} B"
        if kind.library_memory:
            text += f"; libraries keep {kind.library_memory} B"
        if kind.communicator_memory:
            text += f"; {kind.communicator_memory} B a communicator"
        lines.append((f"device @{kind.name}", text))
    for level in hardware.levels:
        text = (
            f"{level.span} devices, {level.bandwidth:.4g} B/s, {level.latency:.3g} s"
            f"{', reduces in the fabric' if level.in_fabric_reduction else ''}"
        )
        lines.append((f"link @{level.name}", text))
    for name in device_map.used:
        mesh = device_map.meshes[name]
        axes = " x ".join(f"{axis}={size}" for axis, size in mesh.axes) or "one device"
        lines.append((f"mesh @{name}", f"{axes}: {device_ranges(mesh.devices)}"))
    known = functions(run.module)
    lines.append(("functions", f"{len(known)}, entry @{run.entry.sym_name.data}"))
    return lines + _arguments(run)


def _arguments(run: Run) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    totals: dict[str, tuple[int, int]] = {}
    for argument in arguments_of(run.entry):
        role, shape = argument.role, shape_of(argument.type)
        if role in BATCH_ROLES:
            lines.append((f"{role} {argument.name}", shape_text(shape)))
        else:
            count, elements = totals.get(role, (0, 0))
            totals[role] = (count + 1, elements + prod(shape or ()))
    return lines + [
        (f"arguments: {role}", f"{count} tensors, {elements:,} elements")
        for role, (count, elements) in totals.items()
    ]
