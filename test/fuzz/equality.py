"""
When two programs compute the same: names apart, all of dtype, shape, NaNs and values.

Floating-point results differ by rounding. How far says the program itself: where results
differ by more than usual, the sequential program is run again with noise as large as
rounding errors on every value. If that moves its results as much, the program is
ill-conditioned and the case says nothing; else it is a finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import PythonValues

from distir.dialects import onnx
from distir.interpreters.functions import call_by_name
from distir.interpreters.reference import ReferenceInterpreter
from distir.program import entry_function

Array = npt.NDArray[Any]

TRIALS = 6
"""Runs with noise before results that differ are a finding."""

NOISE = {2: 1e-3, 4: 1e-6, 8: 1e-14}
"""By bytes of an element, relative to the largest number of a tensor."""


class Different(AssertionError):
    """Two programs that should compute the same do not."""


def difference(expected: Array, actual: Array) -> float:
    """
    The largest difference relative to the largest number; infinity for arrays of other
    shapes, types, or other places of NaNs and infinities.
    """
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return np.inf
    if expected.dtype.kind not in "fcV":
        return 0.0 if bool((expected == actual).all()) else np.inf
    kind: Any = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(kind), actual.astype(kind)
    finite = np.isfinite(a) & np.isfinite(b)
    others = (a == b) | (np.isnan(a) & np.isnan(b))
    if not bool((finite | others).all()):
        return np.inf
    if not finite.any():
        return 0.0
    a, b = a[finite], b[finite]
    scale = max(float(np.abs(a).max()), 1e-3)
    return float(np.abs(a - b).max()) / scale


def tolerance(array: Array) -> float:
    """What rounding may make of results, relative to the largest number."""
    if array.dtype.kind not in "fcV":
        return 0.0
    return {1: 0.3, 2: 2e-2, 4: 1e-4}.get(array.dtype.itemsize, 1e-7)


@dataclass
class _Noisy(ReferenceInterpreter):
    """Adds noise as large as rounding errors to every value that an op computes."""

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._generator = np.random.default_rng(self.seed)

    def run_op(self, op: Any, inputs: PythonValues = ()) -> PythonValues:
        results = super().run_op(op, inputs)
        if isinstance(op, onnx.OPERATORS["", "Constant"]):
            return results
        return tuple(map(self.noisy, results))

    def noisy(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            return value
        finite = value[np.isfinite(value)]
        scale = float(np.max(np.abs(finite.astype(np.float64)), initial=0.0))
        noise = self._generator.uniform(-1, 1, value.shape)
        with np.errstate(all="ignore"):
            moved = value + NOISE[value.dtype.itemsize] * scale * noise
        return moved.astype(value.dtype)


def is_ill_conditioned(
    module: ModuleOp, arguments: Sequence[Array], expected: Sequence[Array]
) -> bool:
    """Whether noise moves results of a sequential program about as far as is allowed."""
    name = entry_function(module).sym_name.data
    for seed in range(TRIALS):
        interpreter = _Noisy(module, seed=seed)
        moved = call_by_name(interpreter, name, list(map(interpreter.noisy, arguments)))
        for a, b in zip(expected, moved, strict=True):
            if difference(a, b) > tolerance(a) / 10:
                return True
    return False


def assert_same(
    module: ModuleOp,
    arguments: Sequence[Array],
    expected: Sequence[Array],
    actual: Sequence[Array],
) -> bool:
    """
    Raises Different unless the results are those of the sequential program `module`;
    false where that is too ill-conditioned to say.
    """
    if len(expected) != len(actual):
        raise Different(f"{len(expected)} results became {len(actual)}")
    for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
        error = difference(a, b)
        if error > tolerance(a):
            exact = a.dtype == b.dtype and a.shape == b.shape
            if exact and is_ill_conditioned(module, arguments, expected):
                return False
            raise Different(
                f"result {i}: {a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}, "
                f"relative error {error:.3g}"
            )
    return True
