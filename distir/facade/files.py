"""`distir.export` and `distir.calibrate`: functions that write files."""

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
    Exports a checkpoint or a plan to `output`, with the options of the command `distir
    export`. Returns the path of the file. By default the weights of a checkpoint are
    written. With `to="dtensor"` the function writes a plan as Python code that calls
    PyTorch's own functions; if `source` is a saved plan, the option `program` is the
    program for which the plan was found. Raises DistIRError if a file cannot be read or
    written.
    """
    given = command_options("export", "export", [source, "-o", output], options)
    export_command.run(given)
    return Path(output)


def calibrate(output: str | Path, **options: Unpack[CalibrateOptions]) -> Path:
    """
    Measures this machine and writes its profile to `output`, with the options of the
    command `distir calibrate` (`backend`, `devices`, `dtype`, ...). The function prints
    the measurements, and returns the path of the profile, for the option `profile` of
    functions such as `distir.simulate`. A second file in the same folder describes the
    machine as a cluster. Raises DistIRError if the measurement fails or a file cannot
    be written.
    """
    given = command_options("calibrate", "calibrate", ["-o", output], options)
    calibrate_command.run(given)
    return Path(output)
