"""
Ops of other dialects that compute each element of a result from the elements of the
operands at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

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
from distir.interpreters.reference import register_reference_implementations
from distir.sharding.rule import Factor, Linear, Rule, sharding_rule

Linearity = Literal["", "all", "each", "first"]
"""
The operands through which partial sums pass: none, all together, each by itself, or the
first.
"""

_SETS: Mapping[Linearity, Callable[[int], tuple[tuple[int, ...], ...]]] = {
    "": lambda count: (),
    "all": lambda count: (tuple(range(count)),),
    "each": lambda count: tuple((i,) for i in range(count)),
    "first": lambda count: ((0,),),
}


def elementwise_rule(op: Operation, linearity: Linearity = "") -> Rule:
    """
    Returns the rule of an elementwise op: each dimension of the result is a factor that
    all operands share. Operands that are no tensors have none.
    """
    (result,) = op.results
    if not isinstance(result.type, TensorType):
        return Rule.replicated(op)
    shape = result.type.get_shape()
    dims = tuple((i,) for i in range(len(shape)))
    return Rule(
        factors=tuple(map(Factor, shape)),
        operands=tuple(
            dims if isinstance(v.type, TensorType) else () for v in op.operands
        ),
        results=(dims,),
        linear=tuple(Linear(frozenset(s)) for s in _SETS[linearity](len(op.operands))),
    )


def register_rules(dialect: str, names: Mapping[str, Linearity]) -> None:
    """Registers the rules of elementwise ops of a dialect, by their short names."""
    for name, linearity in names.items():

        def rule(op: Operation, linearity: Linearity = linearity) -> Rule:
            return elementwise_rule(op, linearity)

        sharding_rule(f"{dialect}.{name}")(rule)


def dtype_of(type_: Attribute) -> np.dtype[Any]:
    """Returns the NumPy dtype of a number, or of the elements of a tensor."""
    if isinstance(type_, TensorType):
        return dtype_of(type_.element_type)
    return np.dtype(np.int64) if isinstance(type_, IndexType) else numpy_dtype(type_)


def register_meaning(
    kinds: Mapping[type[Operation], Callable[..., Any]],
    by_op: Mapping[type[Operation], Callable[..., Any]] | None = None,
) -> None:
    """
    Registers the meaning of elementwise ops with one result. `kinds` maps each class of
    ops to a function of the operands, which are arrays; the functions in `by_op` get
    the op first. Results are cast to the element type of the op's result, as NumPy
    computes with wider numbers at times.
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
