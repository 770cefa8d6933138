"""`distir schedule`: applies the schedule in a script to a program."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distir.launch.options import ProcessOptions
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.types import output_program
from distir.tools.tuning import add_tuning_arguments

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from distir.tools.files import Arrays
    from distir.tools.schedule_verification import ScheduleCheck
    from distir.tools.tuning import TunedSchedule


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
    add_options(parser, ProcessOptions, ("kernels",))
    add_options(
        parser,
        ProcessOptions,
        ("timeout",),
        default=60.0,
        help="how long the checks of one kernel may take (default 60)",
    )
    add_tuning_arguments(parser)


@dataclass(frozen=True, eq=False)
class ScheduledModule:
    """
    A program to which a schedule was applied. `module` is the program. `place` is the
    index, among the given programs, of the program to which the schedule was applied.
    `check` has the results of `--verify`, and `tuned` the results of `--tune`; each of
    the two is None without its option.
    """

    module: ModuleOp
    place: int = 0
    check: ScheduleCheck | None = None
    tuned: TunedSchedule | None = None


def run(arguments: argparse.Namespace) -> int:
    from distir.errors import DistIRError
    from distir.tools.files import program_weights, read_program, write_program
    from distir.tools.reports.reporting import INTERRUPTED, note, progress
    from distir.tools.schedule_verification import print_check
    from distir.tools.tuning import report_tuning

    check_schedule_arguments(arguments)
    asked = (arguments.output, arguments.print, arguments.verify, arguments.tune)
    if not any(asked):
        raise DistIRError(
            "say with -o where the program goes, --print the schedule, --verify its "
            "kernels, or --tune its knobs"
        )
    paths = [arguments.program, *arguments.also]
    with progress(f"reading {arguments.program}"):
        modules = [read_program(path) for path in paths]
    found = scheduled(
        modules, arguments, lambda before: program_weights(before, arguments.program)
    )
    if found.tuned is not None:
        report_tuning(found.tuned, arguments)
    if found.check is not None:
        print_check(found.check)
    if arguments.output is not None:
        add_step(found.module, arguments)
        with progress(f"writing {arguments.output}"):
            beside = write_program(found.module, arguments.output, paths[found.place])
        if beside is not None:
            note(
                f"the weights are now also at {beside}, beside {arguments.output.name}"
            )
    return INTERRUPTED if found.tuned is not None and found.tuned.interrupted else 0


def check_schedule_arguments(arguments: argparse.Namespace) -> None:
    """Raises DistIRError for arguments that cannot be combined."""
    from distir.errors import DistIRError
    from distir.tools.arguments.training import differentiate_pass
    from distir.tools.tuning import check_tuning_arguments

    check_tuning_arguments(arguments)
    differentiate_pass(arguments)
    if arguments.kernels and not arguments.verify:
        raise DistIRError("--kernels is of use with --verify only; add it")
    if arguments.verify and arguments.tune is not None:
        raise DistIRError("--verify and --tune are two commands; leave out one of them")


def scheduled(
    modules: list[ModuleOp],
    arguments: argparse.Namespace,
    weights: Callable[[ModuleOp], Arrays],
) -> ScheduledModule:
    """
    Applies the schedule in a script to the first of `modules`, in place. With
    `--verify` or `--tune`, also verifies or tunes the schedule. The other modules are
    the same model for other batch sizes. `weights` returns the weights of the first
    module. Raises DistIRError if the schedule cannot be applied, or if it changes the
    results.
    """
    from distir.dialects.schedule import AutocastOp
    from distir.errors import DistIRError
    from distir.passes.apply_schedule import ApplySchedulePass
    from distir.planning.plans.programs import batch_of
    from distir.scheduling.recorder import SEQUENCE
    from distir.scheduling.script import add_schedules, read_script
    from distir.tools.files import apply_passes, verify
    from distir.tools.reports.reporting import progress
    from distir.tools.schedule_verification import checked_schedule
    from distir.tools.tuning import tune

    schedules, module = read_script(arguments.script), modules[0]
    before = module.clone() if arguments.verify else module
    add_schedules(module, schedules)
    verify(module)
    if arguments.print:
        print(module)
    if arguments.tune is not None:
        sequence = next((s for s in schedules if s.sym_name.data == SEQUENCE), None)
        if sequence is None:
            raise DistIRError(f"{arguments.script} holds no schedule @{SEQUENCE}")
        sequence.detach()
        tuned = tune(arguments, modules, sequence)
        batches = [batch_of(each) for each in modules]
        place = batches.index(tuned.best.plan.batch)
        return ScheduledModule(tuned.module(), place, tuned=tuned)
    if arguments.output is not None or arguments.verify:
        with progress("applying the schedule"):
            apply_passes(module, ApplySchedulePass(set=tuple(arguments.set)))
    if not arguments.verify:
        return ScheduledModule(module)
    is_cast = any(op.name == AutocastOp.name for s in schedules for op in s.walk())
    check = checked_schedule(before, module, is_cast, arguments, weights)
    return ScheduledModule(module, check=check)


def add_step(module: ModuleOp, arguments: argparse.Namespace) -> None:
    """
    Turns a program into a training step, in place, if the option `--training` is given.
    """
    from distir.tools.arguments.training import differentiate_pass
    from distir.tools.files import apply_passes
    from distir.tools.reports.reporting import progress

    differentiate = differentiate_pass(arguments)
    if differentiate is not None:
        with progress("differentiating"):
            apply_passes(module, differentiate)
