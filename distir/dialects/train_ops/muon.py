"""
Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers"), in three ops: the
momentum, the orthogonalised direction, and the step along it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.formula import Expr
from distir.dialects.tensors import rank_of
from distir.dialects.train_ops.base import F64, I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import check_float
from distir.dialects.train_ops.optimizers import UpdateOp, check_below_one

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The coefficients a, b and c of the published iteration."""


@irdl_op_definition
class MuonMomentumOp(UpdateOp):
    """
    The direction of Muon before `train.orthogonalize`: `buffer = momentum * buffer + (1
    - momentum) * gradient`, and `direction = buffer`, or with `nesterov` `(1 -
    momentum) * gradient + momentum * buffer`.
    """

    name = "train.muon_momentum"
    TORCH_MODULE: ClassVar[str] = "muon"
    IS_WHOLE: ClassVar[bool] = False
    REPLACED: ClassVar[Sequence[int | None]] = (None, 0)

    buffer = operand_def(TensorType)
    gradient = operand_def(TensorType)
    momentum = prop_def(F64)
    nesterov = opt_prop_def(UnitAttr)
    direction = result_def(TensorType)
    new_buffer = result_def(TensorType)

    @staticmethod
    def formula(
        buffer: Expr, gradient: Expr, *, momentum: float, nesterov: bool = False
    ) -> tuple[Expr, ...]:
        g = gradient.like(buffer)
        new = buffer + (1 - momentum) * (g - buffer)
        direction = new - (1 - momentum) * (new - g) if nesterov else new
        return direction, new

    def verify_(self) -> None:
        self.verify_pair(self.buffer, self.gradient, "buffer")
        check_below_one(self, momentum=self.momentum)


@irdl_op_definition
class OrthogonalizeOp(TrainOp):
    """
    The matrices `x` [..., m, n] with singular values near 1, by `steps` steps of a
    Newton-Schulz iteration. Each matrix is first divided by its Frobenius norm, or by
    `epsilon` if `epsilon` is larger. A matrix with more rows than columns is transposed
    before the iteration and after it. Each step computes, with G = X transpose(X),

        X = a X + (b G + c G G) X

    The products are computed in the type of `x`, and their sums are accumulated in at
    least 32 bits. A zero row or column stays zero.
    """

    name = "train.orthogonalize"
    COST_CLASS: ClassVar[str] = "contraction"
    TORCH: ClassVar[str] = (
        "orthogonalize({0}, ({a}, {b}, {c}), {epsilon}, steps={steps})"
    )
    TORCH_MODULE: ClassVar[str] = "muon"

    x = operand_def(TensorType)
    steps = prop_def(I64)
    a = prop_def(F64)
    b = prop_def(F64)
    c = prop_def(F64)
    epsilon = prop_def(F64)
    result = result_def(TensorType)

    TYPES: ClassVar[Types] = {"result": like("x")}

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        if rank_of(self.x.type) < 2:
            raise VerifyException(
                f"{self.name}: x has {rank_of(self.x.type)} dimensions, a matrix has 2"
            )
        if self.steps.value.data < 0:
            raise VerifyException(f"{self.name}: steps is negative")
        super().verify_()


@irdl_op_definition
class MuonOp(UpdateOp):
    """
    One step of Muon along the direction `gradient`. The new parameter is

        parameter * (1 - learning_rate * weight_decay) - learning_rate * scale * gradient
    """

    name = "train.muon"
    TORCH_MODULE: ClassVar[str] = "muon"
    IS_WHOLE: ClassVar[bool] = False
    REPLACED: ClassVar[Sequence[int | None]] = (0,)

    parameter = operand_def(TensorType)
    gradient = operand_def(TensorType)
    learning_rate = prop_def(F64)
    weight_decay = prop_def(F64)
    scale = prop_def(F64)
    new_parameter = result_def(TensorType)

    @staticmethod
    def formula(
        parameter: Expr,
        gradient: Expr,
        *,
        learning_rate: Expr | float,
        weight_decay: Expr | float,
        scale: float,
    ) -> Expr:
        kept = parameter * (1 - learning_rate * weight_decay)
        return kept - learning_rate * scale * gradient.like(parameter)

    def verify_(self) -> None:
        self.verify_pair(self.parameter, self.gradient)


OPS = [MuonMomentumOp, OrthogonalizeOp, MuonOp]
