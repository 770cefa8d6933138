"""
The types interpreter represents each value of a program by its type.

`onnx.shape_inference` infers shapes, one op at a time. This inference fails for a shape
that depends on the elements of a tensor; `distir.interpreters.mixed` can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType, UnrankedTensorType
from xdsl.dialects.func import CallOp
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    OpImplResult,
    PythonValues,
    register_impls,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from distir.dialects.constants import direct_constant
from distir.dialects.dist import ConstrainOp
from distir.dialects.onnx import OPERATORS
from distir.dialects.onnx_ops.inference import contradicts, inferred_types
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import SIZE_OPERANDS
from distir.dialects.onnx_ops.values import tensor_type
from distir.errors import DistIRError
from distir.interpreters.functions import ProgramFunctions
from distir.program import describe, functions

Observer = Callable[[SSAValue, Any], None]


def result_types(
    op: OnnxOp,
    operand_types: Sequence[Attribute],
    known: Sequence[npt.NDArray[Any] | None],
) -> list[Attribute]:
    """
    Returns the types of an op's results, inferred from the operand types and from the
    operands whose arrays are in `known`, and refined by the declared result types.
    Raises DistIRError if the op cannot take such operands, or if its declared types
    contradict the inferred ones.
    """
    declared = [result.type for result in op.results]
    if op.name == "onnx.Constant":
        return declared
    try:
        inferred = inferred_types(op, operand_types, known)
    except VerifyException as error:
        raise DistIRError(f"{describe(op)} {error}") from error
    return [
        type_ if new is None else refined(op, type_, new)
        for type_, new in zip(declared, inferred, strict=True)
    ]


def refined(op: Operation, declared: Attribute, inferred: Attribute) -> Attribute:
    """
    Returns the most precise type of a value of `op` that has both the `declared` and
    the `inferred` type. Raises DistIRError if the two types contradict each other.
    """
    if not isinstance(inferred, TensorType):
        return declared
    if isinstance(declared, UnrankedTensorType):
        return inferred
    if not isinstance(declared, TensorType):
        return declared
    if contradicts(declared, inferred):
        raise DistIRError(
            f"{describe(op)} has a result of type {declared}, but its operands give "
            f"{inferred}"
        )
    return with_shape(
        declared,
        [
            b if a < 0 else a
            for a, b in zip(inferred.get_shape(), declared.get_shape(), strict=True)
        ],
    )


def with_shape(type_: TensorType[Any], shape: Sequence[int]) -> TensorType[Any]:
    """Returns the tensor type `type_` with the shape `shape`."""
    if tuple(shape) == type_.get_shape():
        return type_
    return tensor_type(shape, type_.element_type, type_.encoding)


def is_static(type_: Attribute) -> bool:
    """
    Whether all sizes of a type's shape are known. True for types that have no shape.
    """
    if isinstance(type_, UnrankedTensorType):
        return False
    return not isinstance(type_, TensorType) or all(d >= 0 for d in type_.get_shape())


@register_impls
class OnnxTypes(InterpreterFunctions):
    """
    Infers the result types of every operator of `onnx`. An operand that is the direct
    result of an `onnx.Constant` counts as an attribute, because older opsets wrote such
    operands as attributes.
    """

    @classmethod
    def _impls(cls) -> Iterable[tuple[type[Operation], Any]]:
        return ((op_type, cls.run) for op_type in OPERATORS.values())

    def run(
        self, interpreter: Interpreter, op: OnnxOp, args: PythonValues
    ) -> OpImplResult:
        known = [direct_constant(v) for v in op.operands]
        return OpImplResult(tuple(result_types(op, args, known)), None)


class TypesInterpreter(Interpreter):
    """
    Interprets a program on types. Ops of `onnx` get inferred result types. The results
    of a call have the types that the called function returns. `dist.constrain` keeps
    the type of its operand. All other ops have their declared result types.
    """

    def __init__(
        self,
        module: ModuleOp,
        implementations: InterpreterFunctions | None = None,
        observer: Observer | None = None,
    ):
        super().__init__(module)
        self.known = functions(module)
        self.register_implementations(ProgramFunctions(self.known, observer))
        self.register_implementations(implementations or OnnxTypes())

    def run_op(self, op: Any, inputs: PythonValues = ()) -> PythonValues:
        if isinstance(op, ConstrainOp) and isinstance(inputs[0], Attribute):
            return inputs
        if isinstance(op, OnnxOp | CallOp):
            return super().run_op(op, inputs)
        assert isinstance(op, Operation)
        return tuple(result.type for result in op.results)

    def run_roots(self) -> None:
        """
        Interprets every function that no other function calls, on its declared argument
        types.
        """
        called = {
            op.callee.string_value()
            for op in self.module.walk()
            if isinstance(op, CallOp)
        }
        for name, function in self.known.items():
            if name not in called and function.body.blocks:
                self.call_op(function, tuple(function.function_type.inputs.data))


def infer_types(module: ModuleOp) -> dict[SSAValue, Attribute]:
    """
    Returns the type of every value. Raises DistIRError if a shape is unknown; the
    message names the value and the cause.
    """
    types: dict[SSAValue, Attribute] = {}

    def observe(value: SSAValue, type_: Attribute) -> None:
        if not is_static(type_):
            raise unknown_shape(value)
        types[value] = type_

    TypesInterpreter(module, observer=observe).run_roots()
    return types


def unknown_shape(value: SSAValue) -> DistIRError:
    """Returns the error for a value of unknown shape. Its message names the cause."""
    name = f"%{value.name_hint}" if value.name_hint else "a value"
    op = value.owner
    if not isinstance(op, Operation):
        return DistIRError(
            f"shape of argument {name} is unknown; give its dimensions at import "
            "(--dim NAME=SIZE)"
        )
    what = f"shape of {name}, the result of {op.name}, is unknown: "
    if isinstance(op, OnnxOp):
        positions = SIZE_OPERANDS.get(op.name, ())
        if op.SCHEMA.name.startswith("Reduce"):
            positions = (1,)
        for position in positions:
            operand = op.input(position)
            if operand is not None and direct_constant(operand) is None:
                shown = f"%{operand.name_hint}" if operand.name_hint else "an operand"
                return DistIRError(
                    f"{what}its shape operand {shown} is not a known constant; "
                    "fold-shapes also follows values"
                )
    return DistIRError(f"{what}it depends on the values of the operands")
