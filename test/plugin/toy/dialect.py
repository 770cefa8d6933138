"""
A compiler's own dialect, as DistIR sees it: one op, and what DistIR wants to know of it.
All of it is registered from here; nothing in DistIR names this op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    impl,
    register_impls,
)
from xdsl.ir import Dialect, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure

from distir.dialects.tensors import shape_of
from distir.frontends.custom_operators import custom_operator
from distir.interpreters.reference import register_reference_implementations
from distir.interpreters.simulator import Cost, CostContext, cost_function
from distir.lowering.emitter import Call, torch_emitter
from distir.sharding.rule import Factor, Linear, Rule, sharding_rule


@irdl_op_definition
class SimilarityOp(IRDLOperation):
    """Scalar products of the rows of two matrices: `out[i, j] = sum_k x[i, k] y[j, k]`."""

    name = "toy.similarity"

    x = operand_def(TensorType)
    y = operand_def(TensorType)
    result = result_def(TensorType)

    traits = traits_def(Pure())
    assembly_format = "$x `,` $y attr-dict `:` functional-type(operands, results)"


@custom_operator("org.toy::Similarity")
def read_similarity(
    operands: Sequence[SSAValue | None], attributes: Mapping[str, Any]
) -> Operation:
    """Reads the node of an ONNX model that stands for this op."""
    if attributes or len(operands) != 2 or None in operands:
        raise ValueError("it takes two matrices and no attributes")
    x, y = (value for value in operands if value is not None)
    (rows, _), (columns, _) = shape_of(x.type), shape_of(y.type)
    assert isinstance(x.type, TensorType)
    result = TensorType(x.type.element_type, [rows, columns])
    return SimilarityOp.create(operands=[x, y], result_types=[result])


@sharding_rule("toy.similarity")
def similarity_rule(op: Operation) -> Rule:
    """`([i, k], [j, k]) -> [i, j]`"""
    (i, k), (j, _) = (shape_of(value.type) for value in op.operands)
    return Rule(
        factors=(Factor(i), Factor(j), Factor(k, "reduction")),
        operands=(((0,), (2,)), ((1,), (2,))),
        results=(((0,), (1,)),),
        linear=(Linear(frozenset({0})), Linear(frozenset({1}))),
        flops=2 * i * j * k,
    )


@cost_function("toy.similarity")
def similarity_cost(context: CostContext) -> Cost:
    """One second per operation: easy to find again in a simulation."""
    return Cost(context.flops)


@register_reference_implementations
@register_impls
class ToyFunctions(InterpreterFunctions):
    """What the ops compute, on NumPy arrays."""

    @impl(SimilarityOp)
    def similarity(
        self, interpreter: Interpreter, op: SimilarityOp, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        x, y = args
        return (x @ y.T,)


@torch_emitter("toy.similarity")
def similarity_in_torch(call: Call) -> str:
    """The expression in the generated PyTorch program."""
    return f"{call.operand(0)} @ {call.operand(1)}.mT"


Toy = Dialect("toy", [SimilarityOp], [])
