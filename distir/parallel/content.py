"""Cache keys of packages: equal keys mean equal packages."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from distir.frontends.torch.modules.pickled import ContentPickler, has_file
from distir.parallel.packages import LOADED
from distir.version import __version__

_LIBRARIES = tuple(
    sysconfig.get_path(kind) + os.sep
    for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)
"""The folders of installed packages. Versions identify the code in them."""

_DISTIR = str(Path(__file__).parents[1]) + os.sep
"""The folder of DistIR's own code."""


def content_key(
    kind: str,
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    request: Any,
) -> str | None:
    """
    Returns a cache key, or None if the content has no reliable key. The key depends on
    `kind`, on the module (the files of its code, its structure and settings, the shapes
    of its parameters, the values of its buffers), on the shapes of its inputs, and on
    `request`. A module has no key if it cannot be pickled, such as one with an open
    file, or if its code is in no file, as in a notebook: the code that it calls could
    then change unnoticed.
    """
    classes = {c for part in module.modules() for c in type(part).__mro__}
    if not all(has_file(c.__module__) for c in classes):
        return None
    file = io.BytesIO()
    example = [
        (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in _pytree.tree_leaves((tuple(args), dict(kwargs)))
    ]
    parameters = {id(parameter) for parameter in module.parameters()}
    try:
        ContentPickler(file, parameters).dump((module, example, request))
    except Exception:
        return None
    digest = hashlib.sha256(file.getvalue())
    digest.update(f"{kind} {__version__} {torch.__version__} {_own_code()}".encode())
    digest.update(_states(_code(module)).encode())
    return digest.hexdigest()[:32]


@functools.cache
def _own_code() -> str:
    """
    Returns a digest of the files of DistIR's own code. A process computes the digest
    only once, because it keeps running the loaded code.
    """
    found = map(str, Path(_DISTIR).rglob("*.py"))
    return hashlib.sha256(_states(found).encode()).hexdigest()


def _states(paths: Iterable[str]) -> str:
    """
    Returns the paths, sizes and modification times of files, sorted by path, as text.
    """
    found = [(path, os.stat(path)) for path in sorted(paths)]
    return " ".join(f"{path} {s.st_size} {s.st_mtime_ns}" for path, s in found)


def _code(module: torch.nn.Module) -> set[str]:
    """
    Returns the code files, besides DistIR's own, that determine the computation of a
    module: the files of its classes, files that hold the versions of their libraries,
    and all loaded files of the user. Packages that were loaded for other programs or
    plans are left out.
    """
    found: set[str] = set()
    names = {c.__module__ for part in module.modules() for c in type(part).__mro__}
    names |= {name.partition(".")[0] for name in names}
    for name, loaded in list(sys.modules.items()):
        if name.startswith(LOADED):
            continue
        path = getattr(loaded, "__file__", None)
        if path and (name in names or not path.startswith(_LIBRARIES)):
            found.add(path)
    return {
        path
        for path in found
        if path.endswith(".py") and not path.startswith(_DISTIR) and isfile(path)
    }


def tensors_of(structure: Any) -> list[torch.Tensor]:
    """Returns the tensors in nested containers, as a flat list."""
    leaves = _pytree.tree_leaves(structure)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
