"""Cache keys of packages: equal keys mean equal packages."""

from __future__ import annotations

import hashlib
import inspect
import io
import marshal
import os
import pickle
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from distir.frontends.torch.modules.meta import has_no_value
from distir.version import __version__

_NOT_OF_FORWARD = ("GenerationConfig",)
"""
The names of classes whose objects are left out of keys: modules hold such objects, but
their forward does not use them. The content of a `GenerationConfig` differs in every
process.
"""


_LIBRARIES = tuple(
    sysconfig.get_path(kind) + os.sep
    for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)
"""The folders of installed packages. Versions identify the code in them."""


class _Pickler(pickle.Pickler):
    """
    Pickles everything that decides the computation of a module, including the code of
    functions. For a parameter it writes shape, type and `requires_grad`, but no values.
    """

    def __init__(self, file: io.BytesIO, parameters: set[int]):
        super().__init__(file, protocol=4)
        self._parameters = parameters
        self._classes: set[type] = set()

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, set | frozenset):
            elements: Any = obj
            return ("set", sorted(map(repr, elements)))  # in the same order every time
        if type(obj).__name__ in _NOT_OF_FORWARD:
            return type(obj).__name__
        if isinstance(obj, torch.Tensor):
            what = (tuple(obj.shape), str(obj.dtype), obj.requires_grad)
            if id(obj) in self._parameters or has_no_value(obj):
                return ("tensor", what)
            data = obj.detach().cpu().contiguous().view(-1).view(torch.uint8)
            return ("tensor", what, hashlib.sha256(data.numpy().tobytes()).hexdigest())
        return None

    def reducer_override(self, obj: Any) -> Any:
        if inspect.isfunction(obj) and obj is not _known:
            if not _has_file(obj.__module__):
                raise pickle.PicklingError(f"the code of {obj} is in no file")
            held = [cell.cell_contents for cell in obj.__closure__ or ()]
            code = marshal.dumps(obj.__code__)
            return _known, (code, obj.__defaults__, obj.__kwdefaults__, held)
        return NotImplemented


def _known(*parts: Any) -> None:
    """
    Stands in a pickle for the function that would restore a pickled function. Nothing
    calls it.
    """


def _has_file(module: str) -> bool:
    """
    Whether the loaded Python module named `module` comes from a file, or is built into
    Python.
    """
    loaded = getattr(sys.modules.get(module), "__file__", None)
    return loaded is not None or module in sys.builtin_module_names


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
    `request`. There is no key for a module that cannot be pickled, such as one with an
    open file. Neither is there one if its code is in no file, as in a notebook: code
    that it calls could change unnoticed.
    """
    classes = {c for part in module.modules() for c in type(part).__mro__}
    if not all(_has_file(c.__module__) for c in classes):
        return None
    file = io.BytesIO()
    example = [
        (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in _pytree.tree_leaves((tuple(args), dict(kwargs)))
    ]
    parameters = {id(parameter) for parameter in module.parameters()}
    try:
        _Pickler(file, parameters).dump((module, example, request))
    except Exception:
        return None
    digest = hashlib.sha256(file.getvalue())
    digest.update(f"{kind} {__version__} {torch.__version__}".encode())
    for path in sorted(_code(module)):
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]


def _code(module: torch.nn.Module) -> set[Path]:
    """
    Returns the files of code that decide the computation of a module: the files of its
    classes, files that hold the versions of their libraries, all loaded files of the
    user, and DistIR's own.
    """
    found = set(map(str, Path(__file__).parents[1].rglob("*.py")))
    names = {c.__module__ for part in module.modules() for c in type(part).__mro__}
    names |= {name.partition(".")[0] for name in names}
    for name, loaded in list(sys.modules.items()):
        path = getattr(loaded, "__file__", None)
        if path and (name in names or not path.startswith(_LIBRARIES)):
            found.add(path)
    return {Path(path) for path in found if path.endswith(".py") and isfile(path)}
