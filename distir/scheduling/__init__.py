"""
Schedules: short scripts beside a model that say how it is to run (`docs/schedules.md`).

`recorder` is what scripts are written with, `script` reads their files, `run` carries the IR
form out with the help of `actions` (one for each op) and of `modules`, which finds the
modules of a program. `library` holds scripts for families of models.
"""

from distir.scheduling.recorder import (
    Columns,
    Groups,
    Knob,
    Modules,
    Parameters,
    Rows,
    Schedule,
    onnx,
)

__all__ = [
    "Columns",
    "Groups",
    "Knob",
    "Modules",
    "Parameters",
    "Rows",
    "Schedule",
    "onnx",
]
