"""
Flattening: turning tensors into one-dimensional tensors that any number of devices can
split evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, TensorType, i64
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import INTEGERS, TrainOp
from distir.dialects.train_ops.checks import check_element_type
from distir.dialects.train_ops.splits import Split, shape_of_part, splits_of


def blocks_attribute(parts: Sequence[Split]) -> ArrayAttr[DenseArrayBase[Any]]:
    """
    Returns the attribute `blocks` for the given splits: a list of `[dimension, parts,
    run]`.
    """
    return ArrayAttr([DenseArrayBase.from_list(i64, list(split)) for split in parts])


class _FlatteningOp(TrainOp):
    """
    Base of `train.flatten` and its inverse. `blocks` lists the splits that cut the
    tensor into blocks before it is flattened.
    """

    IS_FRESH: ClassVar[bool] = False

    blocks = opt_prop_def(ArrayAttr.constr(INTEGERS))

    @property
    def parts(self) -> tuple[Split, ...]:
        """
        The splits in `blocks`, which cut the tensor into blocks before the op flattens
        it. Each split adds one dimension to `flat`.
        """
        return splits_of(self.blocks)

    def _verify(self, tensor: SSAValue, flat: SSAValue) -> None:
        check_element_type(self, "flat", flat, element_type(tensor))
        shape, found = shape_of(tensor), shape_of(flat)
        if min((*shape, *found), default=0) < 0:
            return
        block = shape_of_part(shape, self.parts)
        if block is None:
            raise VerifyException(
                f"{self.name}: a tensor of shape {list(shape)} cannot be cut into blocks "
                f"by {', '.join(str([*s]) for s in self.parts)}"
            )
        counts = [split.parts for split in self.parts]
        if list(found[1:]) != counts or not found or found[0] < prod(block):
            sizes = ["n", *map(str, counts)]
            raise VerifyException(
                f"{self.name}: flat has shape {list(found)}, expected "
                f"[{', '.join(sizes)}] with n of {prod(block)} or more"
            )


@irdl_op_definition
class FlattenOp(_FlatteningOp):
    """
    The elements of a tensor in one dimension, in row-major order, followed by zeros up
    to the length of `flat`. Any number of devices can thus have equal parts.
    Elementwise optimizer updates keep the zeros zero, and zeros do not change sums of
    squares.

    `blocks`, a list of `[dimension, parts, run]`, splits the tensor before the
    flattening. Each entry deals the elements of `dimension` out to `parts` parts in
    turn, `run` elements at a time, and adds one dimension to `flat`, whose index is the
    part. Each device can thus flatten its own part of a split tensor.
    """

    name = "train.flatten"
    IS_COPY: ClassVar[bool] = True

    tensor = operand_def(TensorType)
    flat = result_def(TensorType)

    def verify_(self) -> None:
        self._verify(self.tensor, self.flat)
        super().verify_()


@irdl_op_definition
class UnflattenOp(_FlatteningOp):
    """The inverse of `train.flatten`: the tensor without the zeros at the end."""

    name = "train.unflatten"
    IS_VIEW: ClassVar[bool] = True
    IS_COPY: ClassVar[bool] = True

    flat = operand_def(TensorType)
    tensor = result_def(TensorType)

    def verify_(self) -> None:
        self._verify(self.tensor, self.flat)
        super().verify_()


OPS = [FlattenOp, UnflattenOp]
