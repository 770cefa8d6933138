"""
The files of users' kernels.

A program names functions as text, `module:function`, and this text loads no code. The
file of a module is given by the user, published by an installed package under the entry
point `distir.kernels`, or one of DistIR's own kernel files. DistIR reads and copies
these files, and does not import them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.kernel import KernelDefOp, kernels
from distir.errors import DistIRError, listed

GROUP = "distir.kernels"
"""
The group of entry points that publish kernels. The name of an entry point is the
module's name in programs; its value is the Python module.
"""

OWN = Path(__file__).parent.parent / "scheduling" / "kernels"
"""The folder of DistIR's own kernels."""


@dataclass(frozen=True)
class KernelFile:
    """The file of a module of kernels, with its content in bytes."""

    path: Path
    text: bytes

    @property
    def digest(self) -> str:
        """The SHA-256 digest of the file's content, in hexadecimal."""
        return hashlib.sha256(self.text).hexdigest()


def needed_modules(module: ModuleOp) -> dict[str, KernelDefOp]:
    """
    Returns the names of the modules that contain the functions of a program's kernels,
    each with one kernel that uses the module.
    """
    found: dict[str, KernelDefOp] = {}
    for kernel in kernels(module).values():
        named = [kernel.implementation.data]
        if kernel.gradient is not None and kernel.gradient.data != "autograd":
            named.append(kernel.gradient.data)
        for text in named:
            found.setdefault(text.partition(":")[0], kernel)
    return found


def kernel_files(module: ModuleOp, given: Sequence[Path]) -> Mapping[str, KernelFile]:
    """
    Returns, by module name, the files of the modules that a program's kernels name. A
    file in `given` takes precedence over a published file. Raises DistIRError if a
    module has no file, if a file cannot be read, if two files in `given` have the same
    name, or if a name is not the name of a Python module.
    """
    by_name: dict[str, Path] = {}
    for path in given:
        if path.suffix != ".py" or not path.stem.isidentifier():
            raise DistIRError(f"--kernels {path}: kernels are in a file MODULE.py")
        if path.stem in by_name:
            raise DistIRError(f"--kernels: two files are called {path.name}")
        by_name[path.stem] = path
    found: dict[str, KernelFile] = {}
    for name, kernel in needed_modules(module).items():
        path = by_name.get(name) or _published(name) or _own(name)
        if path is None:
            known = listed([str(path) for path in given]) or "none was given"
            raise DistIRError(
                f"kernel @{kernel.symbol} asks for {kernel.implementation.data!r}, but text "
                f"loads no code: give the file of module {name!r} with --kernels {name}.py, "
                f"or publish it under the entry point {GROUP!r} (files: {known})"
            )
        try:
            found[name] = KernelFile(path, path.read_bytes())
        except OSError as error:
            raise DistIRError(
                f"cannot read the kernels in {path}: {error.strerror}"
            ) from error
    return found


def _published(name: str) -> Path | None:
    """
    Returns the file of module `name` if an installed package publishes it, else None.
    The module is not imported.
    """
    for entry in entry_points(group=GROUP, name=name):
        spec = find_spec(entry.module)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            return Path(spec.origin)
    return None


def _own(name: str) -> Path | None:
    path = OWN / f"{name}.py"
    return path if path.exists() and not name.startswith("_") else None
