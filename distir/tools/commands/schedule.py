"""`distir schedule`: applies the schedule of a script to a program."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="model.mlir")
    parser.add_argument(
        "script",
        type=Path,
        metavar="SCRIPT",
        help="a Python file with `def schedule(s)`, or an .mlir file with a "
        "transform.named_sequence @schedule",
    )
    parser.add_argument("-o", dest="output", type=Path, metavar="out.mlir")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KNOB=VALUE",
        help="the value of a knob of the schedule; may be repeated",
    )
    parser.add_argument(
        "--print",
        action="store_true",
        help="print the program with the schedule in its IR form, which "
        "`distir-opt -p apply-schedule` carries out",
    )


def run(arguments: argparse.Namespace) -> int:
    from distir.errors import DistIRError
    from distir.passes.apply_schedule import ApplySchedulePass
    from distir.scheduling.script import add_schedules, read_script
    from distir.tools.files import (
        apply_passes,
        keep_weights_reachable,
        read_program,
        verify,
        write_program,
    )
    from distir.tools.reporting import note, progress

    if arguments.output is None and not arguments.print:
        raise DistIRError("say with -o where the program goes, or --print the schedule")
    with progress(f"reading {arguments.program}"):
        module = read_program(arguments.program)
    add_schedules(module, read_script(arguments.script))
    verify(module)
    if arguments.print:
        print(module)
    if arguments.output is None:
        return 0
    with progress("applying the schedule"):
        apply_passes(module, ApplySchedulePass(set=tuple(arguments.set)))
    beside = keep_weights_reachable(module, arguments.program, arguments.output)
    if beside is not None:
        note(f"the weights are now also at {beside}, beside {arguments.output.name}")
    write_program(module, arguments.output)
    return 0
