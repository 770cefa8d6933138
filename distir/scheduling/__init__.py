"""
Schedules: short scripts beside a model that say how it is to run (`docs/schedules.md`).

`recorder` is what scripts are written with, `script` reads their files, `run` carries the IR
form out with the help of `actions` (one for each op). `tracing` makes patterns of Python
functions, `patterns` has some, `kernel` is how scripts name kernels of a user's, `rewrites` what is done to programs. `library` holds scripts for families of
models.
"""

from distir.scheduling import patterns
from distir.scheduling.kernel import Kernel
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
    "Kernel",
    "Knob",
    "Modules",
    "Parameters",
    "Rows",
    "Schedule",
    "onnx",
    "patterns",
]
