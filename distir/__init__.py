"""
DistIR: an explicit IR for distributed neural-network programs, built on xDSL.

`distir.parallelize` makes of a PyTorch module one that runs on several processes. What it
needs is imported when it is first used: importing `distir` imports neither torch nor onnx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distir.errors import DistIRError as DistIRError
    from distir.parallel.parallel_module import ParallelModule as ParallelModule
    from distir.parallel.parallelize import parallelize as parallelize

__version__ = "0.1.0"

_MODULES = {
    "DistIRError": "distir.errors",
    "ParallelModule": "distir.parallel.parallel_module",
    "parallelize": "distir.parallel.parallelize",
}
"""Where the public names are, each loaded when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'distir' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
