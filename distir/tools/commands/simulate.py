"""`distir simulate`: what a distributed program costs on its cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

_LISTED = 32
"""Devices that the table shows; the rest are in the JSON file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="dist.mlir")
    parser.add_argument(
        "--json", type=Path, metavar="out.json", help="write the numbers to a file"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="trace.json",
        help="write a timeline for chrome://tracing or ui.perfetto.dev",
    )
    parser.add_argument(
        "--flat",
        action="store_true",
        help="execute every op on every device, without summaries: slower, the same result",
    )


def run(arguments: argparse.Namespace) -> int:
    from distir.interpreters.cost import simulate
    from distir.tools.files import read_program
    from distir.tools.reporting import (
        bytes_text,
        flops_text,
        note,
        progress,
        seconds_text,
        table,
    )

    with progress(f"reading {arguments.program}"):
        module = read_program(arguments.program)
    with progress("simulating"):
        result = simulate(module, flat=arguments.flat)
        if arguments.json is not None:
            result.write_json(arguments.json)
        if arguments.trace is not None:
            result.write_trace(arguments.trace)

    print(
        f"step time {seconds_text(result.step_time_s)}, "
        f"{result.throughput_samples_per_s:.4g} samples/s, {result.ops} ops on "
        f"{len(result.devices)} devices of @{result.cluster}"
    )
    rows = [
        [
            str(device),
            f"{bytes_text(peak)} of {bytes_text(memory)}",
            bytes_text(sent),
            flops_text(flops),
            seconds_text(computing),
            seconds_text(communicating),
            seconds_text(idle),
        ]
        for device, peak, memory, sent, flops, computing, communicating, idle in zip(
            result.devices,
            result.peak_memory_bytes,
            result.memory_bytes,
            result.communication_bytes,
            result.flops,
            result.compute_s,
            result.communication_s,
            result.idle_s,
            strict=True,
        )
    ]
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
        rows[:_LISTED],
    )
    if len(rows) > _LISTED:
        note(f"{len(rows) - _LISTED} more devices; --json writes all of them")
    if not result.fits:
        few = ", ".join(map(str, result.too_small[:8]))
        more = ", ..." if len(result.too_small) > 8 else ""
        note(f"the program does not fit into the memory of device {few}{more}")
    return 0
