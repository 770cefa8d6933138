"""
The packages that programs are lowered to: made once, cached by content, read by all ranks.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

from distir.errors import DistIRError

CACHE = "DISTIR_CACHE"
"""The environment variable that names the folder of packages."""


def cache_folder() -> Path:
    """Returns the folder in which packages are cached."""
    if given := os.environ.get(CACHE):
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "distir"


def shared_package(key: str | None, make: Callable[[], Mapping[str, bytes]]) -> Path:
    """
    Returns the folder of a package whose files rank 0 makes, unless it has them from an
    earlier run: under its `key`, which stands for all that the package depends on (None:
    unknown, so that nothing is cached). Every rank must call this; each node gets a copy.
    An error on rank 0 is raised on all ranks. Raises DistIRError.
    """
    sent: list[Any] = [None]
    if dist.get_rank() == 0:
        folder = None if key is None else cache_folder() / key
        try:
            if folder is None or not folder.is_dir():
                sent[0] = (key, dict(make()))
            else:
                sent[0] = (key, _files(folder))
        except DistIRError as error:
            sent[0] = error
        except Exception as error:
            dist.broadcast_object_list([DistIRError(f"rank 0 failed: {error}")])
            raise
    dist.broadcast_object_list(sent)
    if isinstance(sent[0], DistIRError):
        raise sent[0]
    key, files = sent[0]
    return _kept(key, files)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _kept(key: str | None, files: Mapping[str, bytes]) -> Path:
    """
    Returns the folder with these files; ranks that write at the same time write the same.
    """
    parent = cache_folder()
    if key is not None and (parent / key).is_dir():
        return parent / key
    try:
        if key is not None:
            parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="distir-", dir=parent if key else None))
        for name, content in files.items():
            (made / name).write_bytes(content)
    except OSError as error:
        raise DistIRError(
            f"cannot write a package: {error}; set {CACHE} to a folder that can be "
            f"written to and has room"
        ) from error
    if key is None:
        return made
    try:
        made.rename(parent / key)
    except OSError:  # another rank was faster
        shutil.rmtree(made, ignore_errors=True)
    return parent / key


class Package:
    """
    The modules of a package in a folder: `program` (its tables and a class per distinct
    rank), `runtime` and the other helpers.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._name = f"distir_package_{folder.name}".replace("-", "_")
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
        self.program: Any = self.module("program")
        self.runtime: Any = self.module("runtime")

    def module(self, name: str) -> ModuleType:
        """Returns the module of the package that has that name."""
        return import_module(f"{self._name}.{name}")
