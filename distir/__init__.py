"""
DistIR: an explicit IR for distributed neural-network programs, built on xDSL.

`distir.parallelize` makes a PyTorch module run on several processes. Its options, or a
`Plan` from `distir.search`, say how the work is divided. The other functions have the
names and the options of the commands of `distir`; they return programs and facts about
programs. Dependencies are imported at their first use: `import distir` imports neither
torch nor onnx.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from distir.version import __version__ as __version__

if TYPE_CHECKING:
    from distir.errors import DistIRError as DistIRError
    from distir.facade.check import check as check
    from distir.facade.cluster import cluster as cluster
    from distir.facade.files import calibrate as calibrate
    from distir.facade.files import export as export
    from distir.facade.programs import build as build
    from distir.facade.programs import distribute as distribute
    from distir.facade.programs import import_model as import_model
    from distir.facade.programs import schedule as schedule
    from distir.facade.run import lower as lower
    from distir.facade.run import run as run
    from distir.facade.search import search as search
    from distir.facade.serve_plan import serve_plan as serve_plan
    from distir.facade.show import show as show
    from distir.facade.simulate import simulate as simulate
    from distir.frontends.torch.modules.opaque import local_map as local_map
    from distir.frontends.torch.modules.opaque import opaque as opaque
    from distir.parallel.parallel_module import ParallelModule as ParallelModule
    from distir.parallel.parallelize import parallelize as parallelize
    from distir.planning.plans.saved_plan import SavedPlan

    Plan = SavedPlan

__all__ = [
    "DistIRError",
    "ParallelModule",
    "Plan",
    "__version__",
    "build",
    "calibrate",
    "check",
    "cluster",
    "distribute",
    "export",
    "import_model",
    "local_map",
    "lower",
    "opaque",
    "parallelize",
    "run",
    "schedule",
    "search",
    "serve_plan",
    "show",
    "simulate",
]

_NAMES = {
    "DistIRError": "distir.errors:DistIRError",
    "ParallelModule": "distir.parallel.parallel_module:ParallelModule",
    "Plan": "distir.planning.plans.saved_plan:SavedPlan",
    "build": "distir.facade.programs:build",
    "calibrate": "distir.facade.files:calibrate",
    "check": "distir.facade.check:check",
    "cluster": "distir.facade.cluster:cluster",
    "distribute": "distir.facade.programs:distribute",
    "export": "distir.facade.files:export",
    "import_model": "distir.facade.programs:import_model",
    "schedule": "distir.facade.programs:schedule",
    "serve_plan": "distir.facade.serve_plan:serve_plan",
    "show": "distir.facade.show:show",
    "lower": "distir.facade.run:lower",
    "run": "distir.facade.run:run",
    "simulate": "distir.facade.simulate:simulate",
    "local_map": "distir.frontends.torch.modules.opaque:local_map",
    "opaque": "distir.frontends.torch.modules.opaque:opaque",
    "parallelize": "distir.parallel.parallelize:parallelize",
    "search": "distir.facade.search:search",
}
"""
The module and the attribute that define each public name. A name is imported when it is
first used.
"""

_RENAMED: dict[str, str] = {}
"""
The present name of each public name that was renamed in this minor version or the one
before. The old name works, with a warning (docs/stability.md).
"""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        import warnings

        old, name = name, _RENAMED[name]
        warnings.warn(
            f"distir.{old} is now distir.{name}; the old name goes with the next minor "
            "version",
            DeprecationWarning,
            stacklevel=2,
        )
    if name not in _NAMES:
        raise AttributeError(f"module 'distir' has no attribute {name!r}")
    module, _, own = _NAMES[name].partition(":")
    if module in sys.modules:
        return getattr(sys.modules[module], own)
    from distir.system.garbage import lasting_imports

    with lasting_imports():
        return getattr(import_module(module), own)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
