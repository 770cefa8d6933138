"""
Spares PyTorch's newer exporter what it does again and again for a module with many layers,
although the result is the same or nobody reads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    import onnx
    from torch.fx import Graph, GraphModule


@contextlib.contextmanager
def without_repetitions() -> Generator[None]:
    """
    A context manager inside which the exporter

    - reads the schema of each operator of ONNX once;
    - does not note for each operation in which lines of code it was called;
    - compiles the Python code of a graph when it is first needed, not after each change:
      most graphs are read and never called.
    """
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
        patch.object(torch.fx.proxy, "CapturedTraceback", _NoTraceback),
        patch.object(modules, "recompile", compile_later),
        patch.object(modules, "_code", _Code(compiled), create=True),
    ):
        yield


def _specs(graph: Graph) -> dict[str, Any]:
    """Returns what a graph's module says of the structure of its inputs and results."""
    structure: Any = getattr(graph._codegen, "pytree_info", None)  # pyright: ignore[reportPrivateUsage]
    if structure is None:
        return {}
    return {"_in_spec": structure.in_spec, "_out_spec": structure.out_spec}


class _Forward:
    """
    The method of a graph's module that has not been compiled yet; asking for it compiles it, as
    its signature may be what is asked for.
    """

    def __init__(self, compiled: Any):
        self.compiled = compiled

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        self.compiled(module)  # which puts the method in the place of this one
        return module.forward


class _Code:
    """The code of a graph's module that has not been compiled yet."""

    def __init__(self, compiled: Any):
        self.compiled = compiled

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        self.compiled(module)
        return vars(module)["_code"]


class _NoTraceback:
    """Takes the place of a traceback of which nobody needs the lines."""

    @staticmethod
    def extract() -> _NoTraceback:
        return _NoTraceback()

    def summary(self) -> list[str]:
        return []
