"""Registries of facts and functions by names of ops, which fill themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """
    Maps names of ops to entries. A registry that is called with names is a decorator:
    `@sharding_rule("toy.similarity")`. DistIR's own entries are in the modules of a
    package, which is imported with the first look-up, as it imports the registry.
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
        """Returns all entries by the names of their ops."""
        if not self._is_loaded:
            self._is_loaded = True
            import_module(self._package)
        return self._entries

    def get(self, name: str) -> Entry | None:
        """Returns the entry of the ops with that name, if there is one."""
        return self.entries.get(name)


def import_families(package: str, path: Iterable[str]) -> list[ModuleType]:
    """
    Imports every module and sub-package of a package, given its `__name__` and `__path__`,
    in order of their names, so that a new file is found. Returns them.
    """
    return [import_module(f"{package}.{found.name}") for found in iter_modules(path)]
