"""The recurrence of selective state spaces, and its gradient."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
)


class ScanOperandsOp(TrainOp):
    """
    Base of the selective scan and its gradient. For B sequences of T steps, with D
    channels and N states per channel, the shapes are

        x, dt: [B, D, T]        a: [D, N]        b, c: [B, N, T]

    `b` and `c` have the element type of `x`; `dt` and `a` may have other types. The
    states are computed in 32 bits, or in 64 bits if `x` has 64-bit elements, and the op
    does not return them.
    """

    TORCH: ClassVar[str] = "{op}({*})"
    TORCH_MODULE: ClassVar[str] = "selective_scan"
    COST_CLASS: ClassVar[str] = "elementwise"

    x = operand_def(TensorType)
    dt = operand_def(TensorType)
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    c = operand_def(TensorType)

    def verify_(self) -> None:
        for name in ("x", "dt", "a"):
            check_float(self, name, getattr(self, name))
        for name, rank in (("x", 3), ("a", 2)):
            if len(shape_of(getattr(self, name))) != rank:
                raise VerifyException(
                    f"{self.name}: {name} must have {rank} dimensions"
                )
        batch, channels, steps = shape_of(self.x)
        states = shape_of(self.a)[1]
        check_shape(self, "dt", self.dt, (batch, channels, steps))
        check_shape(self, "a", self.a, (channels, states))
        for name in ("b", "c"):
            value = getattr(self, name)
            check_shape(self, name, value, (batch, states, steps))
            check_element_type(self, name, value, element_type(self.x))
        super().verify_()


@irdl_op_definition
class SelectiveScanOp(ScanOperandsOp):
    """
    The recurrence of a selective state space (Gu and Dao 2023). States start as zeros
    and are updated step by step, for each sequence, channel d and state n:

        h[d, n] = exp(dt[d] * a[d, n]) * h[d, n] + dt[d] * x[d] * b[n]
        y[d]    = sum over n of h[d, n] * c[n]
    """

    name = "train.selective_scan"
    # Operations of one state in one step: two products and an exponential for its decay, a
    # product and a sum for the addend, a product and a sum for the result.
    FACTORS: ClassVar[str] = (
        "[b, d, ?t], [b, d, ?t], [d, n], [b, n, ?t], [b, n, ?t] -> [b, d, ?t] "
        "linear 0, 3, 4 flops 7*b*d*n*t"
    )

    y = result_def(TensorType)

    TYPES: ClassVar[Types] = {"y": like("x")}


@irdl_op_definition
class SelectiveScanGradOp(ScanOperandsOp):
    """
    The gradients of `train.selective_scan` with respect to all its operands, from the
    gradient of its result. The op recomputes the states.
    """

    name = "train.selective_scan_grad"
    # Operations: recomputing the state (5), its gradient (3), and its terms in the
    # gradients of c (2), a and dt (6), x (2) and b (3).
    FACTORS: ClassVar[str] = (
        "[b, d, ?t], [b, d, ?t], [b, d, ?t], [d, n], [b, n, ?t], [b, n, ?t] "
        "-> [b, d, ?t], [b, d, ?t], [d, n], [b, n, ?t], [b, n, ?t] "
        "linear 0 flops 21*b*d*n*t"
    )

    dy = operand_def(TensorType)
    dx = result_def(TensorType)
    ddt = result_def(TensorType)
    da = result_def(TensorType)
    db = result_def(TensorType)
    dc = result_def(TensorType)

    TYPES: ClassVar[Types] = {
        "dy": like("x"),
        "dx": like("x"),
        "ddt": like("dt"),
        "da": like("a"),
        "db": like("b"),
        "dc": like("c"),
    }


OPS = [SelectiveScanOp, SelectiveScanGradOp]
