"""
The dialects, passes and targets that installed packages add to xDSL, DistIR's among them.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib.metadata import EntryPoint

from xdsl.universe import Universe

_OWN = EntryPoint("distir", "distir.universe:DISTIR_UNIVERSE", "xdsl.universe")
"""As pyproject.toml has it, for a copy of DistIR that is on the path and not installed."""


def installed_universe() -> Universe:
    """
    Returns the result of `Universe.get_multiverse`: the dialects, passes and targets of every
    package with an entry point in the group `xdsl.universe`. To look for entry points is to
    read a file of each installed package, which takes longer than to read a small program.
    So it is done again only where a folder of `sys.path` was added, removed or changed.
    """
    return _universe(tuple((folder, _changed_at(folder)) for folder in sys.path))


def _changed_at(folder: str) -> int:
    """Returns when a file was last added to a folder; 0 if there is no such folder."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=1)
def _universe(path: tuple[tuple[str, int], ...]) -> Universe:
    """Returns the dialects, passes and targets of the packages in these folders."""
    found = Universe.get_multiverse()
    if "dist" in found.all_dialects:
        return found
    own: Universe = _OWN.load()
    return Universe(
        all_dialects={**found.all_dialects, **own.all_dialects},
        all_passes={**found.all_passes, **own.all_passes},
        all_targets={**found.all_targets, **own.all_targets},
    )
