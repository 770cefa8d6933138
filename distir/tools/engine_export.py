"""Exports a service plan as flags of an inference engine, for `distir export`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from distir.errors import DistIRError
from distir.exports.engines import engine_script, read_settings
from distir.system.output_files import write_text


def write_engine(arguments: Namespace) -> None:
    """
    Writes the plan in `arguments.source` as a shell script that starts the engine
    `arguments.to`. Raises DistIRError if the output has another suffix than `.sh`, if
    `--program` is given, or if a file cannot be read or written.
    """
    output: Path = arguments.output
    if output.suffix != ".sh":
        raise DistIRError(f"cannot write {output}: its name has to end in .sh")
    if arguments.program is not None:
        raise DistIRError(f"--to {arguments.to} needs no --program; leave it out")
    text = engine_script(arguments.to, read_settings(arguments.source))
    try:
        write_text(output, text)
    except OSError as error:
        raise DistIRError(f"cannot write {output}: {error.strerror}") from error
