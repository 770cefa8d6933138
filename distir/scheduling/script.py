"""Reads schedules from files: Python scripts, or their IR form."""

from __future__ import annotations

import runpy
import traceback
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.transform import NamedSequenceOp

from distir.errors import DistIRError
from distir.scheduling.recorder import SEQUENCE, Schedule
from distir.text import ProgramParser, new_context


def read_script(path: Path) -> list[NamedSequenceOp]:
    """
    Returns the schedules in a file. An `.mlir` file holds them as IR; in a Python file,
    the function `schedule` records one. Raises DistIRError, ParseError or
    VerifyException if the file does not hold a valid schedule.
    """
    if path.suffix not in (".mlir", ".py"):
        raise DistIRError(f"{path}: a schedule is a .py or an .mlir file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DistIRError(
            f"cannot read the schedule {path}: {error.strerror}"
        ) from error
    if path.suffix == ".mlir":
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise DistIRError(
                f"{path} is not UTF-8 text; it holds no schedule"
            ) from error
        return parse_script(text, str(path))
    schedule = Schedule()
    try:
        function = runpy.run_path(str(path)).get("schedule")
        if callable(function):
            function(schedule)
    except DistIRError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if f.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
        at = "" if line is None else f", line {line}"
        raise DistIRError(
            f"{path.name}{at}: the schedule cannot be run "
            f"({type(error).__name__}: {error})"
        ) from error
    if not callable(function):
        raise DistIRError(
            f"{path} has no function `schedule`; write `def schedule(s): ...`"
        )
    return [schedule.recorded()]


def parse_script(text: str, name: str) -> list[NamedSequenceOp]:
    """
    Returns the schedules in `text`, the text of a module. `name` names the text in
    error messages. Raises DistIRError, ParseError or VerifyException if the text does
    not hold a valid schedule.
    """
    ops = ProgramParser(new_context(), text, name).parse_module().body.block.ops
    found = [op for op in ops if isinstance(op, NamedSequenceOp)]
    if not found:
        raise DistIRError(
            f"{name} holds no schedule; write a transform.named_sequence @{SEQUENCE}"
        )
    for op in found:
        op.detach()
    return found


def add_schedules(module: ModuleOp, schedules: list[NamedSequenceOp]) -> None:
    """
    Appends `schedules` to a program, in place of all schedules that it had before.
    """
    for op in list(module.body.block.ops):
        if isinstance(op, NamedSequenceOp):
            op.detach()
    module.body.block.add_ops(schedules)
