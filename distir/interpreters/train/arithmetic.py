"""
Registers the functions that compute the ops of `train` on arrays. Half precision is
computed in f32.
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
from distir.interpreters.implementations import register_reference_implementations
from distir.interpreters.joint_ops import Peers, joint_op

Array = npt.NDArray[Any]
Computation = Callable[..., Array | tuple[Array, ...]]

JointComputation = Callable[..., tuple[Array, ...]]

_COMPUTATIONS: dict[type[Operation], Computation] = {}


def computes(*op_types: type[Operation]) -> Callable[[Computation], Computation]:
    """
    Registers a function that computes ops of the types `op_types`. The function takes
    the op and the arrays of its operands, and returns the array of its result, or a
    tuple with one array per result. Operands in half precision are passed in f32.
    Results may be wider than their declared types.
    """

    def register(function: Computation) -> Computation:
        _COMPUTATIONS.update(dict.fromkeys(op_types, function))
        return function

    return register


def computes_jointly(
    *op_types: type[Operation],
) -> Callable[[JointComputation], JointComputation]:
    """
    Registers a function that computes ops in which devices exchange values, on one
    device. The function takes the op, the device's `Peers` and the arrays of its
    operands, and returns the arrays of its results.
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
    """Runs the ops of `train` on arrays."""

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
    """Returns `arrays` converted to the types of the op's results."""
    return tuple(
        np.asarray(array).astype(numpy_dtype(element_type(result)))
        for array, result in zip(arrays, op.results, strict=True)
    )


def _widened(x: Any) -> Array:
    array = np.asarray(x)
    is_half = array.dtype.itemsize == 2 and array.dtype.kind not in "iu"
    return array.astype(np.float32) if is_half else array
