"""`distir.export` and `distir.calibrate`: write files for other programs and searches."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import CalibrateOptions, ExportOptions
from distir.tools.commands import calibrate as calibrate_command
from distir.tools.commands import export as export_command


def export(
    source: str | Path, output: str | Path, **options: Unpack[ExportOptions]
) -> Path:
    """
    Writes the weights of a checkpoint, or with `to="dtensor"` a plan as calls of PyTorch's
    own functions, like `distir export` and with its options: `program` is the program that a
    saved plan was searched for. Returns the file. Raises DistIRError.
    """
    given = command_options("export", "export", [source, "-o", output], options)
    export_command.run(given)
    return Path(output)


def calibrate(output: str | Path, **options: Unpack[CalibrateOptions]) -> Path:
    """
    Measures this machine and writes its profile, like `distir calibrate` and with its
    options (`backend`, `devices`, `dtype`, ...), and what it measured to the terminal.
    Returns the file, for `profile=`; its cluster lies beside it. Raises DistIRError.
    """
    given = command_options("calibrate", "calibrate", ["-o", output], options)
    calibrate_command.run(given)
    return Path(output)
