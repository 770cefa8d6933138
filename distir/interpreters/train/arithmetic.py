"""
Registers what the ops of `train` compute on arrays; half precision is computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
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

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type
from distir.interpreters.joint_ops import Peers, joint_op
from distir.interpreters.reference import register_reference_implementations

Array = npt.NDArray[Any]
Computation = Callable[..., Array | tuple[Array, ...]]

JointComputation = Callable[..., tuple[Array, ...]]

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


def computes_jointly(
    *op_types: type[Operation],
) -> Callable[[JointComputation], JointComputation]:
    """
    Registers what ops compute in which devices exchange values: a function from the op, the
    device's `Peers` and the arrays of its operands to those of its results.
    """

    def register(function: JointComputation) -> JointComputation:
        def of_one_device(op: Operation, *args: Array) -> tuple[Array, ...]:
            return function(op, Peers(), *args)

        for op_type in op_types:
            joint_op(op_type.name)(partial(_run_jointly, function))
        computes(*op_types)(of_one_device)
        return function

    return register


def _run_jointly(
    function: JointComputation, op: Operation, peers: Peers, args: PythonValues
) -> PythonValues:
    return _narrowed(op, function(op, peers, *map(_widened, args)))


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
        return OpImplResult(_narrowed(op, arrays), None)


def _narrowed(op: Operation, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Returns the arrays in the types of an op's results."""
    return tuple(
        np.asarray(array).astype(numpy_dtype(element_type(result)))
        for array, result in zip(arrays, op.results, strict=True)
    )


def _widened(x: Any) -> Array:
    array = np.asarray(x)
    is_half = array.dtype.itemsize == 2 and array.dtype.kind not in "iu"
    return array.astype(np.float32) if is_half else array
