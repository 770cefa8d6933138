"""The conversions of StableHLO ops: one file for each family."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules


def load_all() -> None:
    """Loads the files of this folder, which register their conversions."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
