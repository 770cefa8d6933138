"""
Schedules: short scripts beside a model that say how it is to run (`docs/schedules.md`).

`recorder` is what scripts are written with, `script` reads their files, `run` carries the IR
form out with the help of `actions` (one for each op). `tracing` makes patterns of Python
functions, `rewrites` what is done to programs. `library` holds scripts for families of
models.
"""

from distir.scheduling.recorder import (
    Columns,
    FoundGroups,
    Knob,
    Modules,
    Parameters,
    Rows,
    Schedule,
    onnx,
)

__all__ = [
    "Columns",
    "FoundGroups",
    "Knob",
    "Modules",
    "Parameters",
    "Rows",
    "Schedule",
    "onnx",
]
