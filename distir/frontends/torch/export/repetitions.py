"""
Saves PyTorch's newer exporter repeated work for modules with many layers: work whose
result is the same each time or is never read.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
from collections.abc import Generator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from distir.errors import listed

if TYPE_CHECKING:
    import onnx
    from torch.fx import Graph, GraphModule


_PARTS = (
    ("onnx_ir.schemas", "OpSignature.from_op_schema"),
    ("torch.fx.proxy", "CapturedTraceback.extract"),
    ("torch.fx", "GraphModule.recompile"),
)
"""The private parts of libraries, by module, that `without_repetitions` replaces."""

_LIBRARIES = (
    *(f"{Path(str(s.origin)).parent}/" for s in (find_spec("torch"),) if s is not None),
    f"{Path(__file__).parents[2]}/",
    f"{Path(contextlib.__file__).parent}/contextlib",
)
"""
The folders and files of code that belongs to libraries, not to the user, in a
traceback.
"""


def warn_of_repetitions() -> None:
    """Warns if the installed libraries lack parts that `without_repetitions` needs."""
    missing = _missing_parts()
    if missing:
        import torch

        warnings.warn(
            f"{listed(missing)}, which DistIR speeds PyTorch's exporter up by, cannot be "
            f"found beside PyTorch {torch.__version__}: modules are imported without that, "
            f"as the same programs, but those of many layers take several times as long",
            stacklevel=5,
        )


def _missing_parts() -> list[str]:
    """
    Returns the names of the missing library parts that `without_repetitions` needs.
    """
    missing = [f"{module}.{path}" for module, path in _PARTS if not _has(module, path)]
    if not missing:
        from torch.fx import Graph, GraphModule

        empty = GraphModule({}, Graph())
        if "_code" not in vars(empty):
            missing.append("torch.fx.GraphModule._code")
        if not hasattr(empty.graph, "_codegen"):
            missing.append("torch.fx.Graph._codegen")
    return missing


def _has(module: str, path: str) -> bool:
    try:
        found: Any = import_module(module)
    except ImportError:
        return False
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is not None


@contextlib.contextmanager
def without_repetitions() -> Generator[None]:
    """
    A context manager inside which PyTorch's exporter

    - reads the schema of each ONNX operator once;
    - does not record the lines of code that called each operation, except for the
      user's line;
    - compiles the Python code of a graph only when it is needed, not after each
      change: most graphs are read and never called.

    If the installed libraries lack a part that is needed for this, the exporter runs
    unchanged.
    """
    if _missing_parts():
        yield
        return
    import torch.fx
    import torch.fx.proxy
    from onnx_ir.schemas import OpSignature

    read: Any = OpSignature.from_op_schema
    known: dict[tuple[str, str, int], Any] = {}

    def read_once(schema: onnx.defs.OpSchema) -> Any:
        key = (schema.domain, schema.name, schema.since_version)
        if key not in known:
            known[key] = read(schema)
        return known[key]

    modules: Any = torch.fx.GraphModule
    compiled: Any = modules.recompile

    def compile_later(module: GraphModule) -> None:
        vars(module).pop("_code", None)
        vars(module).update(_specs(module.graph))

        of_module: Any = type(module)  # each graph has a class of its own
        of_module.forward = _Forward(compiled)

    with (
        patch.object(OpSignature, "from_op_schema", staticmethod(read_once)),
        patch.object(torch.fx.proxy, "CapturedTraceback", _UserLine),
        patch.object(modules, "recompile", compile_later),
        patch.object(modules, "_code", _Code(compiled), create=True),
    ):
        yield


def _specs(graph: Graph) -> dict[str, Any]:
    """
    Returns the structure of a graph's inputs and results, as attributes of its module.
    """
    structure: Any = getattr(graph._codegen, "pytree_info", None)  # pyright: ignore[reportPrivateUsage]
    if structure is None:
        return {}
    return {"_in_spec": structure.in_spec, "_out_spec": structure.out_spec}


class _Forward:
    """
    The forward method of a graph's module whose code has not been compiled yet. Any
    access to the method compiles the code, because the caller may want the method's
    signature.
    """

    def __init__(self, compiled: Any):
        self.compiled = compiled

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        self.compiled(module)  # which puts the method in the place of this one
        return module.forward


class _Code:
    """
    The code of a graph's module that has not been compiled yet. Any access to the code
    compiles it.
    """

    def __init__(self, compiled: Any):
        self.compiled = compiled

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        self.compiled(module)
        return vars(module)["_code"]


class _UserLine:
    """
    Replaces a traceback, which is slow to record for each node. It holds only the
    innermost line that belongs neither to PyTorch nor to DistIR, for error messages.
    """

    def __init__(self, frame: FrameType | None):
        self.frame = frame

    @staticmethod
    def extract() -> _UserLine:
        frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
            frame = frame.f_back
        return _UserLine(frame)

    def summary(self) -> traceback.StackSummary:
        if self.frame is None:
            return traceback.StackSummary()
        # PyTorch keeps the lines of functions of this name.
        file, line = self.frame.f_code.co_filename, self.frame.f_lineno
        found = traceback.FrameSummary(file, line, "forward", lookup_line=False)
        return traceback.StackSummary([found])
