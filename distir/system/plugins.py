"""Finds the dialects, passes and targets of installed packages, DistIR included."""

from __future__ import annotations

import functools
import os
import sys
from importlib.metadata import EntryPoint

from xdsl.universe import Universe

_OWN = EntryPoint("distir", "distir.universe:DISTIR_UNIVERSE", "xdsl.universe")
"""
The entry point of DistIR in pyproject.toml, for a copy of DistIR that is not installed.
"""


def installed_universe() -> Universe:
    """
    Returns the dialects, passes and targets of all packages that extend xDSL. These
    packages have an entry point in the group `xdsl.universe`. The result is the result
    of `Universe.get_multiverse`, with DistIR added if it is not installed. Finding
    entry points reads a file of each installed package, which takes longer than reading
    a small program. The result is therefore kept until a folder of `sys.path` is added,
    removed or changed.
    """
    return _universe(tuple((folder, _changed_at(folder)) for folder in sys.path))


def _changed_at(folder: str) -> int:
    """
    Returns the time at which `folder` last changed, in nanoseconds, or 0 if the folder
    does not exist.
    """
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=1)
def _universe(path: tuple[tuple[str, int], ...]) -> Universe:
    """
    Returns the dialects, passes and targets of the packages on `path`. `path` has the
    folders of `sys.path` and the times of their last changes. It serves as the key of
    the cache.
    """
    found = Universe.get_multiverse()
    if "dist" in found.all_dialects:
        return found
    own: Universe = _OWN.load()
    return Universe(
        all_dialects={**found.all_dialects, **own.all_dialects},
        all_passes={**found.all_passes, **own.all_passes},
        all_targets={**found.all_targets, **own.all_targets},
    )
