"""
Registries that map op names to facts or functions, and import their entries themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """
    Maps op names to entries. Calling a registry with op names gives a decorator that
    registers an entry: `@sharding_rule("toy.similarity")`. DistIR's own entries are in
    the modules of `package`. That package imports the registry, so it is imported only
    at the first look-up.
    """

    def __init__(self, package: str):
        self._package = package
        self._entries: dict[str, Entry] = {}
        self._is_loaded = False

    def __call__(self, *names: str) -> Callable[[Entry], Entry]:
        def register(entry: Entry) -> Entry:
            self._entries.update(dict.fromkeys(names, entry))
            return entry

        return register

    @property
    def entries(self) -> dict[str, Entry]:
        """Returns all entries, by op name."""
        if not self._is_loaded:
            self._is_loaded = True
            import_module(self._package)
        return self._entries

    def get(self, name: str) -> Entry | None:
        """Returns the entry of the ops called `name`, or None if there is none."""
        return self.entries.get(name)


def import_families(package: str, path: Iterable[str]) -> list[ModuleType]:
    """
    Imports every module and sub-package of a package and returns them in order of their
    names. New files are thus found without a list. `package` and `path` are the
    package's `__name__` and `__path__`.
    """
    return [import_module(f"{package}.{found.name}") for found in iter_modules(path)]
