"""The conversions of StableHLO ops, with one file for each family of ops."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules


def load_all() -> None:
    """Imports the modules of this package, which register their conversions."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
