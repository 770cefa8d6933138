"""
Schedules: short scripts beside a model that say how it is to run (`docs/schedules.md`).

Scripts are written with `recorder`, `kernel` (names kernels of a user's) and `patterns`
(ready-made patterns); `script` reads their files; `run` applies the IR form of a schedule
with `actions`, one for each op. `tracing` turns Python functions into patterns, `rewrites`
changes programs. `library` holds scripts for families of models.
"""

from distir.scheduling import kernels, patterns
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
    "kernels",
    "onnx",
    "patterns",
]
