"""Gradients of look-ups, and sums at given indices."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import Float32Type, Float64Type, TensorType
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_integers,
    check_shape,
    checked_axis,
)


@irdl_op_definition
class GatherGradOp(TrainOp):
    """
    The gradient of `onnx.Gather` along `axis` with respect to its data. `ddata` begins
    as zeros, and each slice of `dy` is added at the position of its index, in a fixed
    order. `dy` is `[...before, ...indices, ...after]`, and `ddata` is `[...before,
    rows, ...after]`. Indices are in `-rows .. rows-1`; negative ones count from the
    end.

    If `data` is given, the rows are split like the rows of `data`. The values of `data`
    are not used.
    """

    name = "train.gather_grad"
    TORCH: ClassVar[str] = "gather_grad({0}, {1}, {result:shape}, {op.dimension})"
    TORCH_MODULE: ClassVar[str] = "indexing"
    COST_CLASS: ClassVar[str] = "gather"

    dy = operand_def(TensorType)
    indices = operand_def(TensorType)
    data = opt_operand_def(TensorType)
    axis = prop_def(I64)
    ddata = result_def(TensorType)

    TYPES: ClassVar[Types] = {"data": like("ddata")}

    assembly_format = (
        "$dy `,` $indices (`like` $data^)? attr-dict `:` "
        "functional-type(operands, results)"
    )

    @property
    def dimension(self) -> int:
        """The index, counted from 0, of the dimension that the look-up indexes."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.ddata)))

    def verify_(self) -> None:
        sizes, axis = shape_of(self.ddata), self.dimension
        check_float(self, "dy", self.dy)
        check_integers(self, "indices", self.indices)
        expected = (*sizes[:axis], *shape_of(self.indices), *sizes[axis + 1 :])
        check_shape(self, "dy", self.dy, expected)
        check_element_type(self, "ddata", self.ddata, element_type(self.dy))
        super().verify_()


@irdl_op_definition
class ScatterSumOp(TrainOp):
    """
    Zeros in the shape of `result`, to which `updates` are added at given `indices`: the
    gradients of `onnx.GatherND` and `onnx.GatherElements`. Negative indices count from
    the end.

    - Without `axis`, the last dimension of `indices` holds tuples of n indices.
      `updates` is `[...batch, ...places, ...after]`, `indices` is `[...batch,
      ...places, n]` and `result` is `[...batch, ...n indexed dimensions, ...after]`.
      There are `batch_dims` dimensions in `batch`.
    - With `axis`, `indices` has the shape of `updates`. Each element is added at the
      position of its index along `axis`, and at its own position along other
      dimensions.
    """

    name = "train.scatter_sum"
    TORCH: ClassVar[str] = (
        "scatter_sum({*}, {result:shape}, {op.dimension}, {op.batch})"
    )
    TORCH_MODULE: ClassVar[str] = "indexing"
    COST_CLASS: ClassVar[str] = "gather"

    updates = operand_def(TensorType)
    indices = operand_def(TensorType)
    axis = opt_prop_def(I64)
    batch_dims = opt_prop_def(I64)
    result = result_def(TensorType)

    @property
    def batch(self) -> int:
        """The number of leading batch dimensions, which all tensors share."""
        return 0 if self.batch_dims is None else self.batch_dims.value.data

    @property
    def dimension(self) -> int | None:
        """The index of the axis, counted from 0; None if indices are tuples."""
        if self.axis is None:
            return None
        return checked_axis(self, self.axis.value.data, len(shape_of(self.result)))

    def verify_(self) -> None:
        check_integers(self, "indices", self.indices)
        check_element_type(self, "result", self.result, element_type(self.updates))
        sizes, places = shape_of(self.result), shape_of(self.indices)
        if self.dimension is not None:
            check_shape(self, "updates", self.updates, places)
            if len(places) != len(sizes):
                raise VerifyException(
                    f"{self.name}: indices and result differ in their number of dimensions"
                )
            return
        count, depth = self.batch, places[-1] if places else 0
        if not 0 <= count < len(places) or count + depth > len(sizes):
            raise VerifyException(
                f"{self.name}: {count} batch dimensions and tuples of {depth} indices are "
                f"more than a result with {len(sizes)} dimensions has"
            )
        check_shape(self, "indices", self.indices, (*sizes[:count], *places[count:]))
        expected = (*places[:-1], *sizes[count + depth :])
        check_shape(self, "updates", self.updates, expected)


def adds_by_row(look_ups: GatherGradOp) -> bool:
    """
    Whether the gradient of a look-up can be added to another tensor row by row, without
    a tensor of its own. This needs look-ups along dimension 0. The result is False for
    16-bit elements, because each addition would be rounded.
    """
    element = element_type(look_ups.ddata)
    return look_ups.dimension == 0 and isinstance(element, Float32Type | Float64Type)


OPS = [GatherGradOp, ScatterSumOp]
