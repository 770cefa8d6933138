"""
The packages of lowered programs: made once, cached by content, and read by all ranks.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from distir.errors import DistIRError
from distir.system.garbage import lasting_imports, one_garbage_collection
from distir.system.output_files import replaced_files

if TYPE_CHECKING:
    from distir.frontends.imported_model import ImportedModel

CACHE = "DISTIR_CACHE"
"""The environment variable that names the folder of cached packages."""

LOADED = "distir_package_"
"""How the names of the Python modules of packages begin."""

_COMPILER = (
    "distir.passes.differentiate",
    "distir.planning.distribution.distribute",
    "distir.lowering.torch_package",
)
"""The modules that import most of the code that makes packages."""


def cache_folder() -> Path:
    """
    Returns the folder of cached packages: the environment variable `DISTIR_CACHE`, or
    `distir` in the user's cache folder.
    """
    if given := os.environ.get(CACHE):
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "distir"


def shared_package(
    key_of: Callable[[], str | None], make: Callable[[], Mapping[str, bytes]]
) -> Path:
    """
    Returns the folder of a package. Rank 0 makes its files by calling `make`, unless
    the cache has them under the key that `key_of` returns on rank 0. The key stands for
    everything that the package depends on; with None, nothing is cached. Every rank
    must call this function, and each node gets a copy of the files. If rank 0 fails,
    every rank raises an error.
    """
    sent: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            key = key_of()
            folder = cached_folder(key)
            if folder is None:
                _import_compiler()
                with one_garbage_collection():
                    sent[0] = key, dict(make())
            else:
                sent[0] = key, files_of(folder)
        except DistIRError as error:
            sent[0] = error
        except Exception as error:
            # A KeyError's text is the `repr` of the key, such as an op.
            said = "KeyError" if isinstance(error, KeyError) else error
            failed = f"rank 0 failed: {said}; its own traceback says where"
            dist.broadcast_object_list([DistIRError(failed)])
            raise
    dist.broadcast_object_list(sent)
    if isinstance(sent[0], DistIRError):
        raise sent[0]
    key, files = sent[0]
    return keep_files(key, files)


def _import_compiler() -> None:
    """
    Imports the parts of DistIR that make packages. A start from the cache does without
    them. They are imported before a program is made, so that the collection of the
    garbage that programs leave does not search them.
    """
    with lasting_imports():
        for name in _COMPILER:
            import_module(name)


def cached_folder(key: str | None) -> Path | None:
    """
    Returns the folder of the files cached under `key`, or None if there are no such
    files.
    """
    folder = None if key is None else cache_folder() / key
    return folder if folder is not None and folder.is_dir() else None


def files_of(folder: Path) -> dict[str, bytes]:
    """Returns the contents of the files in a package's folder, by their paths in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def keep_files(key: str | None, files: Mapping[str, bytes]) -> Path:
    """
    Writes `files` to the cache under `key`, or to a temporary folder if `key` is None,
    and returns their folder. Writes nothing if the cache already has the key. Several
    ranks can write at the same time, because they write the same content. Raises
    DistIRError if the folder cannot be written.
    """
    if (known := cached_folder(key)) is not None:
        return known
    parent = cache_folder()
    try:
        folder = parent / key if key else Path(tempfile.mkdtemp(prefix="distir-"))
        with replaced_files(folder) as made:
            for name, content in files.items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).write_bytes(content)
    except OSError as error:
        raise DistIRError(
            f"cannot write a package: {error}; set {CACHE} to a folder that can be "
            f"written to and has room"
        ) from error
    return folder


class Package:
    """
    The Python modules of the package in `folder`: `program` (its tables, and a class
    for each distinct rank), `runtime`, and the modules that `module` returns.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._name = f"{LOADED}{folder.name}".replace("-", "_")
        if self._name not in sys.modules:
            spec = importlib.util.spec_from_file_location(
                self._name,
                folder / "__init__.py",
                submodule_search_locations=[str(folder)],
            )
            assert spec is not None and spec.loader is not None
            package = importlib.util.module_from_spec(spec)
            sys.modules[self._name] = package
            spec.loader.exec_module(package)
        with lasting_imports():
            self.program: Any = self.module("program")
            self.runtime: Any = self.module("runtime")

    def module(self, name: str) -> ModuleType:
        """Returns the package's Python module called `name`."""
        return import_module(f"{self._name}.{name}")


def save_constants(imported: ImportedModel, path: Path) -> None:
    """
    Writes the weights of a program to a file, except for the parameters, which the
    module itself holds. The program may have several entries.
    """
    from distir.program import arguments_of, entry_function, entry_points
    from distir.program.weights import save_weights

    program = imported.module
    entries = entry_points(program).values() or [entry_function(program)]
    arguments = [each for entry in entries for each in arguments_of(entry)]
    own = {each.name for each in arguments if each.role == "parameter"}
    save_weights(path, {n: a for n, a in imported.weights.items() if n not in own})
