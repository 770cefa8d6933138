"""
When two programs compute the same: names apart, all of dtype, shape, NaNs and values.

Floating-point results differ by rounding. How far says the program itself: where a result
differs by more than usual, the sequential program is run again with noise as large as
rounding errors on every value. If that moves this result as much, the program is
ill-conditioned and the case says nothing; else it is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

NOISE = {1: 0.0, 2: 1e-3, 4: 1e-6, 8: 1e-14}
"""
By bytes of an element, relative to the largest number of a tensor. Numbers of 8 bits get
none: no op adds such numbers up, and where noise moves what is rounded to 8 bits across the
middle between two of them, the rounded number moves by a whole step (an eighth in e4m3).
"""

SPREAD = 10
"""How much further than noise in the trials rounding may move a result."""


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
        if not isinstance(value, np.ndarray) or not _is_float(value):
            return value
        exact = value.astype(np.float64)
        scale = float(np.max(np.abs(exact[np.isfinite(exact)]), initial=0.0))
        noise = self._generator.uniform(-1, 1, value.shape)
        with np.errstate(all="ignore"):
            moved = exact + NOISE[value.dtype.itemsize] * scale * noise
            return moved.astype(value.dtype)


def _is_float(array: Array) -> bool:
    """Whether an array has elements of floats; those of 16 and 8 bits are NumPy's kind V."""
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float8"))


def moved_by_noise(
    module: ModuleOp, arguments: Sequence[Array]
) -> Iterator[Sequence[Array]]:
    """Yields the results of a sequential program with noise on every value, trial by trial."""
    name = entry_function(module).sym_name.data
    for seed in range(TRIALS):
        interpreter = _Noisy(module, seed=seed)
        yield call_by_name(interpreter, name, list(map(interpreter.noisy, arguments)))


def assert_same(
    module: ModuleOp,
    arguments: Sequence[Array],
    expected: Sequence[Array],
    actual: Sequence[Array],
) -> bool:
    """
    Raises Different unless the results are those of the sequential program `module`;
    false where some of them are too ill-conditioned to say.
    """
    if len(expected) != len(actual):
        raise Different(f"{len(expected)} results became {len(actual)}")
    pairs = list(zip(expected, actual, strict=True))
    errors = [difference(a, b) for a, b in pairs]
    apart = {i for i, (a, _) in enumerate(pairs) if errors[i] > tolerance(a)}
    if not apart:
        return True
    trials = moved_by_noise(module, arguments) if all(map(_is_alike, pairs)) else ()
    for moved in trials:
        apart -= {
            i for i in apart if SPREAD * difference(expected[i], moved[i]) >= errors[i]
        }
        if not apart:
            return False
    i = min(apart)
    a, b = pairs[i]
    raise Different(
        f"result {i}: {a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}, "
        f"relative error {errors[i]:.3g}"
    )


def _is_alike(pair: tuple[Array, Array]) -> bool:
    return pair[0].dtype == pair[1].dtype and pair[0].shape == pair[1].shape
