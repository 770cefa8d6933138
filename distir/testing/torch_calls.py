"""Evaluates the PyTorch expression of one op, if PyTorch is installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import Operation, SSAValue

from distir.dialects.registries import name_of
from distir.lowering.emitter import Call, emitter_for, torch_emitter
from distir.lowering.helper_modules import imported_as
from distir.testing.errors import OpCheckError
from distir.testing.runs import compare

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]

_SHARED = frozenset("?") | {f"{kind}{n}" for kind in "iu" for n in (1, 2, 4, 8)}
"""The element types, beside floats, that arrays and tensors of PyTorch share."""


class _OperandNames:
    """
    The names of an op's operands in a PyTorch expression, and the modules that the
    expression uses.
    """

    def __init__(self, op: Operation):
        self._values = list(op.operands)
        self.modules: dict[str, Any] = {}

    def name(self, value: SSAValue) -> str:
        return f"operand{self._values.index(value)}"

    def helper(self, module: str) -> str:
        self.modules[module] = import_module(imported_as(module))
        return module

    def group(self, op: Operation) -> str:
        raise OpCheckError(
            f"{name_of(op)} communicates, so that its PyTorch expression needs processes"
        )

    def number(self, value: int) -> str:
        return repr(value)

    def listed(self, values: Sequence[SSAValue]) -> list[str]:
        return [self.name(value) for value in values]


def can_run_torch(op: Operation, arrays: Sequence[Array]) -> bool:
    """
    Whether the registered PyTorch expression of an op can be evaluated on this machine:
    PyTorch must be installed and have the element types of `arrays`.
    """
    return (
        torch_emitter.of(op) is not None
        and find_spec("torch") is not None
        and all(a.dtype.kind in "fcb" or a.dtype.str[1:] in _SHARED for a in arrays)
    )


def check_torch(
    op: Operation, operands: Sequence[Array], results: Sequence[Array]
) -> None:
    """
    Evaluates the PyTorch expression of `op` and compares it with `results`. Raises
    OpCheckError if they differ.
    """
    import torch
    import torch.nn.functional

    names = _OperandNames(op)
    written = emitter_for(op)(Call(op, names))
    texts = [written] if isinstance(written, str) else list(written)
    place: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **names.modules}
    for i, array in enumerate(operands):
        place[f"operand{i}"] = torch.from_numpy(np.array(array, order="C"))
    found: list[Any] = [eval(text, place) for text in texts]
    if len(found) == 1 and isinstance(found[0], tuple):
        found = list(found[0])
    what = f"the PyTorch expression of {name_of(op)}, {'; '.join(texts)},"
    if len(found) != len(results):
        raise OpCheckError(
            f"{what} gives {len(found)} tensors, but the op has {len(results)} results"
        )
    for value, expected in zip(found, results, strict=True):
        compare(_array(value), expected, what)


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().numpy()
