"""
Support for elementwise ops of dialects that do not belong to DistIR. Each element of
the result depends on the elements of the operands at the same position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Attribute, Operation

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.interpreters.implementations import register_reference_implementations
from distir.sharding.rule import sharding_rule
from distir.sharding.rules.elementwise import Linearity, elementwise_rule


def register_rules(dialect: str, names: Mapping[str, Linearity]) -> None:
    """
    Registers the sharding rules of elementwise ops of `dialect`. `names` maps the name
    of each op, without the dialect, to the op's linearity in its operands.
    """
    for name, linearity in names.items():
        sharding_rule(f"{dialect}.{name}")(elementwise_rule(linearity))


def dtype_of(type_: Attribute) -> np.dtype[Any]:
    """Returns the NumPy dtype of a scalar type, or of the elements of a tensor type."""
    if isinstance(type_, TensorType):
        return dtype_of(type_.element_type)
    return np.dtype(np.int64) if isinstance(type_, IndexType) else numpy_dtype(type_)


def register_meaning(
    kinds: Mapping[type[Operation], Callable[..., Any]],
    by_op: Mapping[type[Operation], Callable[..., Any]] | None = None,
) -> None:
    """
    Registers the evaluation of elementwise ops with one result. `kinds` maps each class
    of ops to a function that takes the operands, as arrays, and returns the result. A
    function in `by_op` takes the op before the operands. Results are cast to the
    element type of the op's result.
    """

    own = by_op or {}

    def implementation(
        kind: type[Operation], compute: Callable[..., Any]
    ) -> Callable[..., Any]:
        def run(
            self: InterpreterFunctions,
            interpreter: Interpreter,
            op: Operation,
            args: PythonValues,
        ) -> PythonValues:
            with np.errstate(all="ignore"):
                found = compute(op, *args) if kind in own else compute(*args)
            return (np.asarray(found).astype(dtype_of(op.results[0].type)),)

        return run

    methods = {
        kind.name.replace(".", "_"): impl(kind)(implementation(kind, compute))
        for kind, compute in {**kinds, **own}.items()
    }
    made = type("ElementwiseFunctions", (InterpreterFunctions,), methods)
    register_reference_implementations(register_impls(made))
