"""
A compiler's own dialect, as DistIR sees it: two ops, and what DistIR wants to know of
them. All of it is said here; nothing in DistIR names these ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects.builtin import IntegerAttr, TensorType, i64
from xdsl.ir import Dialect, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from distir.extension import (
    Cost,
    CostContext,
    GradientBuilder,
    LocalContext,
    OpSupport,
    custom_operator,
)
from distir.rules import shape_of


def similarity(op: SimilarityOp, x: Any, y: Any) -> Any:
    """What the op computes, on NumPy arrays."""
    return x @ y.T


def similarity_gradient(
    op: SimilarityOp, gradients: Sequence[SSAValue | None], build: GradientBuilder
) -> list[SSAValue | None]:
    """The gradients of both matrices, of that of the result."""
    (dy,) = gradients
    turned = build.onnx("Transpose", dy, perm=[1, 0])
    return [build.onnx("MatMul", dy, op.y), build.onnx("MatMul", turned, op.x)]


def similarity_cost(context: CostContext) -> Cost:
    """One second per operation: easy to find again in a simulation."""
    return Cost(context.flops)


@irdl_op_definition
class SimilarityOp(IRDLOperation):
    """Scalar products of the rows of two matrices: `out[i, j] = sum_k x[i, k] y[j, k]`."""

    name = "toy.similarity"

    x = operand_def(TensorType)
    y = operand_def(TensorType)
    result = result_def(TensorType)

    traits = traits_def(
        Pure(),
        OpSupport(
            rule="i k, j k -> i j linear 0, 1 flops 2*i*j*k",
            reference=similarity,
            gradient=similarity_gradient,
            cost=similarity_cost,
            torch="{0} @ {1}.mT",
        ),
    )
    assembly_format = "$x `,` $y attr-dict `:` functional-type(operands, results)"


def split_heads(op: SplitHeadsOp, x: Any) -> Any:
    """What the op computes, on NumPy arrays."""
    return x.reshape(len(x), op.heads.value.data, -1)


def heads_of_a_device(context: LocalContext) -> list[Operation]:
    """The op on one device, whose attribute says how many heads that device has."""
    op = context.same_op()
    _, heads, _ = shape_of(context.result_types[0])
    op.properties["heads"] = IntegerAttr(heads, i64)
    return [op]


@irdl_op_definition
class SplitHeadsOp(IRDLOperation):
    """Columns as heads of equal width: `out[i, h, k] = x[i, h * width + k]`."""

    name = "toy.split_heads"

    x = operand_def(TensorType)
    heads = prop_def(IntegerAttr.constr(i64))
    result = result_def(TensorType)

    traits = traits_def(
        Pure(),
        OpSupport(
            rule="n (h k) -> n h k linear 0",
            local_form=heads_of_a_device,
            reference=split_heads,
            torch="{0}.unflatten(1, ({heads}, -1))",
        ),
    )
    assembly_format = "$x `,` $heads attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        if shape_of(self.result)[1] != self.heads.value.data:
            raise VerifyException("`heads` is not the number of heads of the result")


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


Toy = Dialect("toy", [SimilarityOp, SplitHeadsOp], [])
