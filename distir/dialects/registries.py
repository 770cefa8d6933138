"""
Registries map op names to facts or functions. A registry imports the modules that
register its entries at the first look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Generic, TypeVar

from xdsl.dialects.builtin import UnregisteredOp
from xdsl.ir import Operation
from xdsl.traits import OpTrait

Entry = TypeVar("Entry")

_OWN = frozenset(
    [
        "builtin",
        "collective",
        "device",
        "dist",
        "func",
        "kernel",
        "onnx",
        "schedule",
        "torch",
        "train",
    ]
)
"""Dialects whose entries are all in DistIR's own packages."""

_OTHERS = {
    "arith": "distir.foreign.arith",
    "linalg": "distir.foreign.linalg",
    "math": "distir.foreign.math",
    "tensor": "distir.foreign.tensor",
}
"""Modules that register what DistIR wants to know of dialects of xDSL."""

READ_BY_IMPORT = ("chlo", "stablehlo")
"""Dialects without support: `distir import` turns their programs into DistIR's."""

ENTRY_POINTS = "distir.dialects"
"""
The entry point under which a package names such modules. The name of an entry is the
name of a dialect, which need not be the package's own.
"""


def load_support(name: str) -> None:
    """
    Imports the modules that register entries for the dialect of the op called `name`,
    at the first call for this dialect.
    """
    dialect = name.partition(".")[0]
    if dialect not in _OWN:
        _load_dialect(dialect)


@cache
def _load_dialect(dialect: str) -> None:
    """
    Imports the modules that register entries for a dialect: first DistIR's own module,
    then the modules of other packages.
    """
    if dialect in _OTHERS:
        import_module(_OTHERS[dialect])
    for found in _installed().select(name=dialect):
        found.load()


@cache
def _installed() -> EntryPoints:
    """
    Returns all entry points of other packages. This reads the metadata of all packages.
    """
    return entry_points(group=ENTRY_POINTS)


@dataclass(frozen=True)
class StatedEntries(OpTrait):
    """
    A trait of op classes that gives the ops of a class their entries in registries.
    Such ops need no registration by name.
    """

    entries: tuple[tuple[Registry[Any], Any], ...]


def name_of(op: Operation) -> str:
    """Returns the name of an op, even if the op's dialect is not loaded."""
    # A comparison of names is faster than `isinstance`, which is rarely true here.
    if op.name == UnregisteredOp.name and isinstance(op, UnregisteredOp):
        return op.op_name.data
    return op.name


class Registry(Generic[Entry]):
    """
    Maps op names to entries. Calling a registry with op names gives a decorator that
    registers an entry: `@sharding_rule("toy.similarity")`. The modules of `package`
    register DistIR's own entries. These modules import the registry, so the registry
    imports the modules only at the first look-up.
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

    def load(self) -> None:
        """
        Imports the modules that register DistIR's own entries, as the first look-up
        does.
        """
        if not self._is_loaded:
            self._is_loaded = True
            import_module(self._package)

    @property
    def entries(self) -> dict[str, Entry]:
        """Returns all entries, by op name."""
        self.load()
        return self._entries

    def get(self, name: str) -> Entry | None:
        """
        Returns the entry of the ops called `name`, or None if there is no such entry.
        Before the look-up, imports the modules that register entries for the dialect of
        these ops.
        """
        found = self.entries.get(name)
        if found is None:
            load_support(name)
            found = self._entries.get(name)
        return found

    def of(self, op: Operation) -> Entry | None:
        """
        Returns the entry that is registered under the op's name. If there is none,
        returns the entry that a trait of the op's class gives (`StatedEntries`), or
        None if no trait gives one.
        """
        found = self.get(name_of(op))
        if found is None:
            return _stated(type(op)).get(self)
        return found


@cache
def _stated(kind: type[Operation]) -> Mapping[Registry[Any], Any]:
    """Returns the entries that the traits of an op class give, for each registry."""
    traits = kind.get_traits_of_type(StatedEntries)
    return {registry: entry for t in traits for registry, entry in t.entries}


def import_families(package: str, path: Iterable[str]) -> list[ModuleType]:
    """
    Imports every module and sub-package of a package and returns them in order of their
    names. New files need no entry in a list. `package` and `path` are the package's
    `__name__` and `__path__`.
    """
    return [import_module(f"{package}.{found.name}") for found in iter_modules(path)]
