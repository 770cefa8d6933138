"""
Mixtures of experts: the assignment of tokens to rows of experts, the transfer of tokens
to these rows and back, and products of each row with the matrix of its expert.

Rows are the dimensions [shards, groups, places] of a tensor. Each shard has the same
number of consecutive experts. The tokens of a group have a fixed number of places in
each shard. Devices that split the shards hold different experts. An empty place costs
memory but no products. No place is empty and no token is dropped if there is one shard,
each group is one token, and a token has as many places as it chooses experts.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import FloatAttr, TensorType, UnitAttr
from xdsl.ir import SSAValue
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
)

EXPECTED_IMBALANCE = 1.3
"""
The load of the busiest device of expert parallelism, as a multiple of the mean load,
that is assumed if a program names none.
"""


def rows_of(value: SSAValue) -> tuple[int, int, int]:
    """Returns the numbers of shards, groups and places of a tensor of rows."""
    shards, groups, places = shape_of(value)[:3]
    return shards, groups, places


def _check_rank(op: TrainOp, name: str, value: SSAValue, rank: int) -> None:
    """
    Raises VerifyException unless `value`, called `name` in the message, has `rank`
    dimensions.
    """
    if len(shape_of(value)) != rank:
        raise VerifyException(
            f"{op.name}: {name} has {len(shape_of(value))} dimensions, expected {rank}"
        )


def _check_experts(op: TrainOp, experts: int, shards: int) -> None:
    """
    Raises VerifyException unless `experts` experts divide evenly among `shards` shards.
    """
    if shards < 1 or experts % shards:
        raise VerifyException(
            f"{op.name}: {experts} experts cannot be dealt out to {shards} shards equally"
        )


def _check_imbalance(op: TrainOp, imbalance: FloatAttr | None) -> None:
    """
    Raises VerifyException if the assumed imbalance, the load of the busiest device as a
    multiple of the mean load, is below 1.
    """
    if imbalance is not None and not imbalance.value.data >= 1:
        raise VerifyException(
            f"{op.name}: the busiest device has at least the mean load, so an imbalance of "
            f"{imbalance.value.data:g} cannot be"
        )


@irdl_op_definition
class ExpertPlacesOp(TrainOp):
    """
    Assigns a row to every choice of a token. `ids` [groups, tokens, choices] are expert
    numbers from 0 to `experts` - 1. An expert takes the first `capacity` choices of
    each group: the tokens' first choices before their second choices, and so on, each
    in the order of tokens. These choices get the places of the expert's shard, ordered
    by expert.

    - `slots` [groups, tokens, choices]: the shard's number times the number of places,
      plus the place; -1 for a dropped choice;
    - `rows` [shards, groups, places]: the number of the row's expert within its shard;
      -1 for an empty place;
    - `imbalance`: the assumed load of the busiest device, as a multiple of the mean
      load (`EXPECTED_IMBALANCE` if absent). Estimates of time and memory depend on
      `imbalance`, results do not.
    """

    name = "train.expert_places"
    FACTORS: ClassVar[str] = "[g, ?, ?] -> [g, ?, ?], [?, g, ?]"

    ids = operand_def(TensorType)
    experts = prop_def(I64)
    capacity = prop_def(I64)
    imbalance = opt_prop_def(FloatAttr)
    slots = result_def(TensorType)
    rows = result_def(TensorType)

    TYPES: ClassVar[Types] = {"slots": like("ids")}

    @property
    def is_dropless(self) -> bool:
        """
        Whether no token is dropped, because each expert takes all tokens of a group
        that choose the expert.
        """
        return self.capacity.value.data >= shape_of(self.ids)[1]

    @property
    def assumed_imbalance(self) -> float:
        """
        The load of the busiest device as a multiple of the mean load, for estimates.
        """
        if self.imbalance is None:
            return EXPECTED_IMBALANCE
        return self.imbalance.value.data

    def verify_(self) -> None:
        check_integers(self, "ids", self.ids)
        _check_rank(self, "ids", self.ids, 3)
        _check_rank(self, "rows", self.rows, 3)
        check_element_type(self, "rows", self.rows, element_type(self.ids))
        shards, groups, _ = rows_of(self.rows)
        _check_experts(self, self.experts.value.data, shards)
        _check_imbalance(self, self.imbalance)
        if groups != shape_of(self.ids)[0]:
            raise VerifyException(
                f"{self.name}: rows are of {groups} groups, ids of {shape_of(self.ids)[0]}"
            )
        super().verify_()


class RoutedRowsOp(TrainOp):
    """
    Base of ops that move tokens to the rows of experts and back. `slots` and `rows` are
    results of `train.expert_places`. The operand `weights`, with one number for each
    choice of each token, is optional.
    """

    COST_CLASS: ClassVar[str] = "gather"

    x = operand_def(TensorType)
    slots = operand_def(TensorType)
    rows = operand_def(TensorType)
    weights = opt_operand_def(TensorType)


@irdl_op_definition
class DispatchOp(RoutedRowsOp):
    """
    Copies each token to the rows of its choices, times the choice's weight if there are
    `weights`. Empty rows are zero. `x` is [groups, tokens, width], `weights` are
    [groups, tokens, choices], and `result` is [shards, groups, places, width]. `slots`
    and `rows` are results of `train.expert_places`.
    """

    name = "train.dispatch"
    FACTORS: ClassVar[str] = (
        "[g, t, w], [g, t, ?], [s, g, ?], [g, t, ?] -> [s, g, ?, w] linear 0, 3"
    )

    result = result_def(TensorType)

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        check_integers(self, "slots", self.slots)
        _check_rank(self, "x", self.x, 3)
        _check_rank(self, "result", self.result, 4)
        shards, _, places = rows_of(self.result)
        groups, tokens, width = shape_of(self.x)
        _check_slots(self, self.result, groups, tokens)
        expected = (shards, groups, places, width)
        check_shape(self, "result", self.result, expected)
        check_element_type(self, "result", self.result, element_type(self.x))
        if self.weights is not None:
            _check_weights(self, self.weights, self.x)


@irdl_op_definition
class CombineOp(RoutedRowsOp):
    """
    Sums, for each token, the rows of its choices, each times its weight if there are
    `weights`. Dropped choices add nothing. `x` is [shards, groups, places, width], and
    `result` is [groups, tokens, width]. The op is the transpose of `train.dispatch` and
    has the same operands; the op does not use the values of `rows`.
    """

    name = "train.combine"
    FACTORS: ClassVar[str] = (
        "[s, g, ?, w], [g, t, ?], [s, g, ?], [g, t, ?] -> [g, t, w] linear 0, 3"
    )

    result = result_def(TensorType)

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        check_integers(self, "slots", self.slots)
        _check_rank(self, "x", self.x, 4)
        _check_rank(self, "slots", self.slots, 3)
        _, groups, _, width = shape_of(self.x)
        tokens = shape_of(self.slots)[1]
        _check_slots(self, self.x, groups, tokens)
        check_shape(self, "result", self.result, (groups, tokens, width))
        check_element_type(self, "result", self.result, element_type(self.x))
        if self.weights is not None:
            _check_weights(self, self.weights, self.x)


def _check_slots(op: RoutedRowsOp, values: SSAValue, groups: int, tokens: int) -> None:
    check_shape(op, "slots", op.slots, (groups, tokens, -1))
    check_integers(op, "rows", op.rows)
    check_shape(op, "rows", op.rows, rows_of(values))


def _check_weights(op: RoutedRowsOp, weights: SSAValue, values: SSAValue) -> None:
    check_shape(op, "weights", weights, shape_of(op.slots))
    check_element_type(op, "weights", weights, element_type(values))


@irdl_op_definition
class CombineWeightsGradOp(TrainOp):
    """
    The gradient of `train.combine` with respect to its weights: for each choice, the
    dot product of its row of `x` [shards, groups, places, width] and its token's row of
    `dy` [groups, tokens, width]; 0 for dropped choices.
    """

    name = "train.combine_weights_grad"
    FACTORS: ClassVar[str] = (
        "[s, g, ?, w], [g, t, ?], [g, t, w] -> [g, t, ?] linear 0, 2"
    )
    TORCH: ClassVar[str] = "combine_weights_grad({*})"
    TORCH_MODULE: ClassVar[str] = "experts"
    COST_CLASS: ClassVar[str] = "gather"

    x = operand_def(TensorType)
    slots = operand_def(TensorType)
    dy = operand_def(TensorType)
    result = result_def(TensorType)

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        check_integers(self, "slots", self.slots)
        _check_rank(self, "x", self.x, 4)
        _check_rank(self, "slots", self.slots, 3)
        _, groups, _, width = shape_of(self.x)
        _, tokens, choices = shape_of(self.slots)
        check_shape(self, "slots", self.slots, (groups, tokens, choices))
        check_shape(self, "dy", self.dy, (groups, tokens, width))
        check_element_type(self, "dy", self.dy, element_type(self.x))
        check_shape(self, "result", self.result, (groups, tokens, choices))
        check_element_type(self, "result", self.result, element_type(self.x))


class GroupedOp(TrainOp):
    """
    Base of products of rows with the matrices of their experts.

    - `rows`: the number of each row's expert within its shard; -1 for empty rows;
    - `transposed`: matrices are [output, input] instead of [input, output];
    - `taken`: the number of rows of a group, over all shards, that are not empty; by
      default all rows. The estimated work depends on `taken`, results do not;
    - `imbalance`: only if no token is dropped, and the shards may be on different
      devices: the assumed load of the busiest device, as of `train.expert_places`.
      Estimates of time and memory then count only the rows of this load; without
      `imbalance`, the estimates count all rows.
    """

    rows = operand_def(TensorType)
    transposed = opt_prop_def(UnitAttr)
    taken = opt_prop_def(I64)
    imbalance = opt_prop_def(FloatAttr)

    def taken_of(self, shards: int, places: int) -> int:
        """
        Returns the number of rows of a group that are not empty, for the given numbers
        of shards and places per shard.
        """
        count = shards * places
        return count if self.taken is None else min(count, self.taken.value.data)

    def _check_matrices(
        self, matrices: SSAValue, x: SSAValue, y: SSAValue, names: tuple[str, str]
    ) -> None:
        """
        Raises VerifyException unless `matrices` holds, for each expert, a matrix from
        the width of `x` to the width of `y`. `names` are the names of `x` and `y` in
        messages.
        """
        _check_imbalance(self, self.imbalance)
        check_float(self, names[0], x)
        check_integers(self, "rows", self.rows)
        _check_rank(self, names[0], x, 4)
        _check_rank(self, names[1], y, 4)
        check_shape(self, "rows", self.rows, rows_of(x))
        check_shape(self, names[1], y, (*rows_of(x), -1))
        widths = shape_of(x)[3], shape_of(y)[3]
        expected = widths[::-1] if self.transposed is not None else widths
        check_shape(self, "matrices", matrices, (-1, *expected))
        _check_experts(self, shape_of(matrices)[0], rows_of(x)[0])
        for name, value in zip((names[1], "matrices"), (y, matrices), strict=True):
            check_element_type(self, name, value, element_type(x))


@irdl_op_definition
class GroupedProductOp(GroupedOp):
    """
    Multiplies each row by the matrix of its expert. `x` is [shards, groups, places,
    input], `matrices` are [experts, input, output], and the result is [shards, groups,
    places, output]. Empty rows become zero.
    """

    name = "train.grouped_product"
    TORCH: ClassVar[str] = "grouped_product({*}, {transposed:flag})"
    TORCH_MODULE: ClassVar[str] = "experts"

    x = operand_def(TensorType)
    rows = operand_def(TensorType)
    matrices = operand_def(TensorType)
    result = result_def(TensorType)

    def verify_(self) -> None:
        self._check_matrices(self.matrices, self.x, self.result, ("x", "result"))


@irdl_op_definition
class GroupedProductGradOp(GroupedOp):
    """
    The gradient of `train.grouped_product` with respect to the matrices: for each
    expert, the sum over its rows of the outer products of `x` and `dy`.
    """

    name = "train.grouped_product_grad"

    x = operand_def(TensorType)
    rows = operand_def(TensorType)
    dy = operand_def(TensorType)
    matrices = result_def(TensorType)

    def verify_(self) -> None:
        self._check_matrices(self.matrices, self.x, self.dy, ("x", "dy"))


OPS = [
    ExpertPlacesOp,
    DispatchOp,
    CombineOp,
    CombineWeightsGradOp,
    GroupedProductOp,
    GroupedProductGradOp,
]
