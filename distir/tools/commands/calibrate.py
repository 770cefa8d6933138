"""`distir calibrate`: measures this machine and writes a profile of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from distir.launch.options import ProcessOptions
from distir.system.output_files import replaced_file, write_text
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.types import (
    non_negative_number,
    output_file,
    positive_integer,
)
from distir.transforms.precision.options import PrecisionOptions

if TYPE_CHECKING:
    from distir.dialects.kernel import KernelDefOp


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        dest="output",
        type=output_file,
        required=True,
        metavar="profile.json",
        help="the profile; a cluster of the same name (.mlir) is written beside it",
    )
    add_options(
        parser,
        ProcessOptions,
        ("backend",),
        help="gloo measures the cores of this machine's CPU (default), nccl its GPUs",
    )
    parser.add_argument(
        "--devices",
        type=positive_integer,
        default=2,
        metavar="N",
        help="2 measures links too (default), 1 a single core or GPU",
    )
    add_options(
        parser,
        PrecisionOptions,
        ("dtype",),
        default="f32",
        help="the element type that is measured (default f32)",
    )
    parser.add_argument(
        "--rounds",
        type=positive_integer,
        default=3,
        metavar="N",
        help="how often everything is measured (default 3)",
    )
    parser.add_argument(
        "--tolerance",
        type=non_negative_number,
        default=0.25,
        metavar="X",
        help="the largest mean error of an op that is accepted: where it is larger, it is "
        "measured again, and left out in the end (default 0.25)",
    )
    parser.add_argument(
        "--program",
        type=Path,
        metavar="model.mlir",
        help="measure the kernels of this program too, whole and in parts: one that a "
        "schedule made, or a training step of it",
    )
    add_options(parser, ProcessOptions, ("kernels",))


def _kernels(arguments: argparse.Namespace) -> tuple[KernelDefOp, ...]:
    """
    Returns the kernels of the given program, which the calibration measures too.
    Returns an empty tuple if no program was given. Raises DistIRError if the program
    cannot be read.
    """
    from distir.dialects.kernel import kernels
    from distir.errors import DistIRError
    from distir.lowering.kernel_files import kernel_files
    from distir.tools.files import read_program

    if arguments.program is None:
        if arguments.kernels:
            raise DistIRError(
                "--kernels FILE.py has functions; which kernels they are, and of what sizes, "
                "a program says: add --program model.mlir"
            )
        return ()
    module = read_program(arguments.program)
    found = tuple(kernels(module).values())
    if not found:
        raise DistIRError(
            f"{arguments.program} has no kernels; `distir schedule` puts them into a program"
        )
    kernel_files(module, arguments.kernels)  # refuses kernels that no file has
    return found


def run(arguments: argparse.Namespace) -> int:
    import json

    from distir.calibration import Settings, calibrate
    from distir.errors import DistIRError
    from distir.tools.reports.reporting import note, table

    profile: Path = arguments.output
    cluster = profile.with_suffix(".mlir")
    if profile.suffix != ".json":
        raise DistIRError(f"a profile is a .json file: give -o {profile.stem}.json")
    settings = Settings(
        arguments.backend,
        arguments.devices,
        arguments.dtype,
        arguments.rounds,
        arguments.tolerance,
        kernels=_kernels(arguments),
        files=tuple(arguments.kernels),
    )
    # An error of a process is reported at the end, once.
    machine = calibrate(
        settings, lambda line: None if line.startswith("error: ") else note(line)
    )
    table(
        ["what", "measurements", "mean error", "largest"],
        [
            [r.name, str(r.samples), f"{r.mean:.1%}", f"{r.largest:.1%}"]
            for r in sorted(machine.residuals, key=lambda r: -r.mean)
        ],
    )
    left_out = machine.disagreeing(arguments.tolerance)
    machine = machine.without(left_out)
    for residual in left_out:
        note(
            f"{residual.name} is left out of the profile ({residual}; at most "
            f"{arguments.tolerance:.0%} is accepted): it is simulated like others of its "
            f"class. Try again when the machine is idle, or accept more with --tolerance"
        )
    with replaced_file(profile) as stream:
        write_text(cluster, machine.cluster_text())
        stream.write(json.dumps(machine.profile_json(), indent=2) + "\n")
    print(f"wrote {profile} and {cluster}")
    return 0
