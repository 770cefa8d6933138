"""
Schedules: short scripts with instructions for running a model, in files of their own
beside the model (`docs/schedules.md`).

Scripts are written with `recorder`, `kernel` (users' kernels) and `patterns`
(ready-made patterns). `script` reads their files. `run` applies the IR form of a
schedule; `actions` has one function for each op of a schedule. `tracing` turns Python
functions into patterns, and `rewrites` changes programs. `library` holds scripts for
families of models.
"""

from distir.scheduling import kernels, patterns
from distir.scheduling.found_groups import FoundGroups, onnx
from distir.scheduling.kernel import Kernel
from distir.scheduling.knobs import Knob
from distir.scheduling.recorder import (
    Columns,
    Modules,
    Parameters,
    Rows,
    Schedule,
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
