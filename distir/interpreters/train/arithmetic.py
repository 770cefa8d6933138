"""
Registers what the ops of `train` compute on arrays; half precision is computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    OpImplResult,
    PythonValues,
    register_impls,
)
from xdsl.ir import Operation

from distir.dialects.onnx_values import numpy_dtype
from distir.dialects.tensors import element_type
from distir.interpreters.reference import register_reference_implementations

Array = npt.NDArray[Any]
Computation = Callable[..., Array | tuple[Array, ...]]

_COMPUTATIONS: dict[type[Operation], Computation] = {}


def computes(*op_types: type[Operation]) -> Callable[[Computation], Computation]:
    """
    Registers what ops compute: a function from the op and the arrays of its operands to the
    array of its result, or to one for each result. Operands in half precision are passed in
    f32, and results may be wider than their types.
    """

    def register(function: Computation) -> Computation:
        _COMPUTATIONS.update(dict.fromkeys(op_types, function))
        return function

    return register


@register_reference_implementations
@register_impls
class TrainFunctions(InterpreterFunctions):
    """Implementations of the ops of `train`."""

    @classmethod
    def _impls(cls) -> Iterable[tuple[type[Operation], Any]]:
        return ((op_type, cls.run) for op_type in _COMPUTATIONS)

    def run(
        self, interpreter: Interpreter, op: Operation, args: PythonValues
    ) -> OpImplResult:
        found = _COMPUTATIONS[type(op)](op, *map(_widened, args))
        arrays = found if isinstance(found, tuple) else (found,)
        narrowed = (
            np.asarray(array).astype(numpy_dtype(element_type(result)))
            for array, result in zip(arrays, op.results, strict=True)
        )
        return OpImplResult(tuple(narrowed), None)


def _widened(x: Any) -> Array:
    array = np.asarray(x)
    is_half = array.dtype.itemsize == 2 and array.dtype.kind not in "iu"
    return array.astype(np.float32) if is_half else array
