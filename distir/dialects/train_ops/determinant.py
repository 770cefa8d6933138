"""The sign and logarithm of determinants, and their gradient."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of, tensor_of
from distir.dialects.train_ops.base import Derived, TrainOp, Types, like
from distir.dialects.train_ops.checks import check_float


def _of_matrices(value: SSAValue) -> TensorType:
    """Returns the type of a tensor with one number for each matrix of `value`."""
    return tensor_of(element_type(value), shape_of(value)[:-2])


def _check_matrices(op: TrainOp, x: SSAValue) -> None:
    """Raises VerifyException unless `x` holds square matrices of floats."""
    check_float(op, "x", x)
    shape = shape_of(x)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise VerifyException(
            f"{op.name}: x has shape {list(shape)}, no square matrices"
        )


@irdl_op_definition
class SlogdetOp(TrainOp):
    """
    The signs of the determinants of the matrices `x` [..., n, n], and the logarithms of
    the absolute values of the determinants. Both results are [...]. For a singular
    matrix, the sign is 0 and the logarithm is minus infinity.
    """

    name = "train.slogdet"
    FACTORS: ClassVar[str] = "[*b, n, m] -> [*b], [*b] keep n m flops 2*b*n*m*m/3"
    TORCH: ClassVar[str] = "slogdet({*})"
    TORCH_MODULE: ClassVar[str] = "determinant"
    COST_CLASS: ClassVar[str] = "contraction"

    x = operand_def(TensorType)
    sign = result_def(TensorType)
    logarithm = result_def(TensorType)

    TYPES: ClassVar[Types] = {
        "sign": Derived("x", _of_matrices),
        "logarithm": Derived("x", _of_matrices),
    }

    def verify_(self) -> None:
        _check_matrices(self, self.x)
        super().verify_()


@irdl_op_definition
class SlogdetGradOp(TrainOp):
    """
    The gradient of the logarithms of absolute determinants. For each square matrix of
    `x`:

        dx = dlogarithm * transpose(inverse(x))
    """

    name = "train.slogdet_grad"
    FACTORS: ClassVar[str] = (
        "[*b], [*b, n, m] -> [*b, n, m] keep n m linear 0 flops 2*b*n*m*m"
    )
    TORCH: ClassVar[str] = "slogdet_grad({*})"
    TORCH_MODULE: ClassVar[str] = "determinant"
    COST_CLASS: ClassVar[str] = "contraction"

    dlogarithm = operand_def(TensorType)
    x = operand_def(TensorType)
    dx = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dlogarithm": Derived("x", _of_matrices), "dx": like("x")}

    def verify_(self) -> None:
        _check_matrices(self, self.x)
        super().verify_()


OPS = [SlogdetOp, SlogdetGradOp]
