"""`distir schedule`: applies the schedule of a script to a program."""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.tools.arguments.types import (
    add_kernels,
    non_negative_number,
    output_program,
)
from distir.tools.tuning import add_tuning_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", type=Path, metavar="model.mlir")
    parser.add_argument(
        "script",
        type=Path,
        metavar="SCRIPT",
        help="a Python file with `def schedule(s)`, or an .mlir file with a "
        "transform.named_sequence @schedule",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=output_program,
        metavar="out.mlir",
        help="the scheduled program; with --training the training step of it",
    )
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
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare each kernel of the schedule with the ops that it takes the place of: "
        "results, gradients, and parts as its rule allows them. This runs the functions. Then "
        "compare the whole program with the one before, with --training a step of each",
    )
    add_kernels(parser)
    parser.add_argument(
        "--timeout",
        type=non_negative_number,
        default=60.0,
        metavar="SECONDS",
        help="how long the checks of one kernel may take (default 60)",
    )
    add_tuning_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from distir.dialects.schedule import AutocastOp
    from distir.errors import DistIRError
    from distir.passes.apply_schedule import ApplySchedulePass
    from distir.planning.plans.programs import batch_of
    from distir.scheduling.recorder import SEQUENCE
    from distir.scheduling.script import add_schedules, read_script
    from distir.tools.arguments.training import differentiate_pass
    from distir.tools.files import (
        apply_passes,
        read_program,
        verify,
        write_program,
    )
    from distir.tools.reports.reporting import INTERRUPTED, note, progress
    from distir.tools.schedule_verification import verify_schedule
    from distir.tools.tuning import check_tuning_arguments, tune

    check_tuning_arguments(arguments)
    differentiate = differentiate_pass(arguments)
    asked = (arguments.output, arguments.print, arguments.verify, arguments.tune)
    if not any(asked):
        raise DistIRError(
            "say with -o where the program goes, --print the schedule, --verify its "
            "kernels, or --tune its knobs"
        )
    if arguments.kernels and not arguments.verify:
        raise DistIRError("--kernels is of use with --verify only; add it")
    if arguments.verify and arguments.tune is not None:
        raise DistIRError("--verify and --tune are two commands; leave out one of them")
    paths = [arguments.program, *arguments.also]
    with progress(f"reading {arguments.program}"):
        modules = [read_program(path) for path in paths]
    schedules, interrupted = read_script(arguments.script), False
    module, source = modules[0], arguments.program
    before = module.clone() if arguments.verify else module
    add_schedules(module, schedules)
    verify(module)
    if arguments.print:
        print(module)
    if arguments.tune is not None:
        found = next((s for s in schedules if s.sym_name.data == SEQUENCE), None)
        if found is None:
            raise DistIRError(f"{arguments.script} holds no schedule @{SEQUENCE}")
        found.detach()
        best, module, interrupted = tune(arguments, modules, found)
        source = next(
            p
            for p, m in zip(paths, modules, strict=True)
            if batch_of(m) == best.plan.batch
        )
    elif arguments.output is not None or arguments.verify:
        with progress("applying the schedule"):
            apply_passes(module, ApplySchedulePass(set=tuple(arguments.set)))
    if arguments.verify:
        is_cast = any(op.name == AutocastOp.name for s in schedules for op in s.walk())
        verify_schedule(before, module, is_cast, arguments)
    if arguments.output is not None and differentiate is not None:
        with progress("differentiating"):
            apply_passes(module, differentiate)
    if arguments.output is not None:
        beside = write_program(module, arguments.output, source)
        if beside is not None:
            note(
                f"the weights are now also at {beside}, beside {arguments.output.name}"
            )
    return INTERRUPTED if interrupted else 0
