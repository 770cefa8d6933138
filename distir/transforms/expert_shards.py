"""Divides the experts of a program into shards, which can be on different devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from xdsl.dialects.builtin import (
    DenseArrayBase,
    FloatAttr,
    FunctionType,
    IntegerType,
    ModuleOp,
    TensorType,
    f64,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.constants import direct_constant
from distir.dialects.dist import ConstrainOp
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import constant_attr
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.experts import (
    CombineOp,
    CombineWeightsGradOp,
    ExpertPlacesOp,
    GroupedOp,
    GroupedProductGradOp,
    RoutedRowsOp,
    rows_of,
)
from distir.errors import DistIRError
from distir.program import describe, return_op

_Rows = tuple[int, ...]
"""The numbers of shards, of groups and of places, which are the first sizes of rows."""


class _Change(NamedTuple):
    """
    The rows of a value before and after experts are divided. `imbalance` is the assumed
    load of the busiest device if no token is dropped, else None. `group_limit` is this
    property of grouped products, if the router has such a limit.
    """

    before: _Rows
    after: _Rows
    imbalance: float | None
    group_limit: DenseArrayBase[IntegerType] | None


_LEAVING = (CombineOp, CombineWeightsGradOp, GroupedProductGradOp)
"""The ops that have rows of experts as operands but not as results."""


def places_needed(op: ExpertPlacesOp, shards: int) -> int:
    """
    Returns the number of places for tokens that a group needs in each of `shards`
    shards. The places must suffice for all choices of the group's tokens.
    """
    _, tokens, choices = shape_of(op.ids)
    own = op.experts.value.data // shards
    return min(own * op.capacity.value.data, tokens * choices)


def deal_out_experts(module: ModuleOp, shards: int) -> None:
    """
    Divides the experts of every mixture in a sequential program into `shards` shards,
    in place. The program's results stay the same, but values between dispatch and
    combination change their shapes. If there are more shards than experts per token,
    more places stay empty. Raises DistIRError if `shards` does not divide the number of
    experts, or if the program reshapes the rows of experts.
    """
    _Dealer(module, shards).run()


def assume_imbalance(module: ModuleOp, imbalance: float | None) -> None:
    """
    Records in every mixture of experts of a program, in place, that the busiest device
    of expert parallelism has `imbalance` times the mean load. Only the simulator uses
    this number. None leaves the program unchanged. Raises DistIRError for a number
    below 1.
    """
    if imbalance is None:
        return
    if not imbalance >= 1:
        raise DistIRError(
            f"an expert imbalance of {imbalance:g} cannot be: the busiest device has at "
            f"least the mean load; give a number of at least 1"
        )
    for op in module.walk():
        is_counted = isinstance(op, GroupedOp) and op.imbalance is not None
        if isinstance(op, ExpertPlacesOp) or is_counted:
            op.properties["imbalance"] = FloatAttr(imbalance, f64)


def rows_and_taken(op: ConstrainOp) -> tuple[SSAValue, int] | None:
    """
    `op` constrains rows that a `train.expert_places` made. Returns the result `rows` of
    this op, and the number of rows that one group of experts uses, summed over the
    shards. Returns None if no op uses the constrained rows.
    """
    for user in _users(op.result):
        if isinstance(user, CombineWeightsGradOp):
            # It has no rows, but the op that dispatches or combines by its slots has.
            others = (other.operation for other in user.slots.uses)
            user = next((o for o in others if isinstance(o, RoutedRowsOp)), user)
        if not isinstance(user, RoutedRowsOp | GroupedOp):
            continue
        rows = user.rows
        while isinstance(rows.owner, ConstrainOp):
            rows = rows.owner.source
        shards, _, places = rows_of(rows)
        if isinstance(user, GroupedOp):
            return rows, user.taken_of(shards, places)
        _, tokens, choices = shape_of(user.slots)
        return rows, min(tokens * choices, shards * places)
    return None


def _users(value: SSAValue) -> Iterator[Operation]:
    """Yields the ops that use `value`, directly or after a change of its type."""
    for use in value.uses:
        yield use.operation
        if use.operation.name == "onnx.Cast":
            yield from _users(use.operation.results[0])


class _Dealer:
    """Follows the rows of experts through a program and changes their shapes."""

    def __init__(self, module: ModuleOp, shards: int):
        self.module = module
        self.shards = shards
        self.functions = {
            op.sym_name.data: op
            for op in module.body.block.ops
            if isinstance(op, FuncOp)
        }
        self.calls: dict[str, list[CallOp]] = {}
        for op in module.walk():
            if isinstance(op, CallOp):
                self.calls.setdefault(op.callee.string_value(), []).append(op)
        self.changed: dict[SSAValue, _Change] = {}
        """For each value with a new shape, how its rows have changed."""
        self.pending: list[SSAValue] = []

    def run(self) -> None:
        for op in list(self.module.walk()):
            if isinstance(op, ExpertPlacesOp):
                self._deal_out(op)
        while self.pending:
            value = self.pending.pop()
            for use in list(value.uses):
                self._follow(use.operation, use.index, self.changed[value])
        for function in self.functions.values():
            ends = return_op(function).operands
            function.function_type = FunctionType.from_lists(
                [arg.type for arg in function.body.block.args], [v.type for v in ends]
            )

    def _deal_out(self, op: ExpertPlacesOp) -> None:
        experts = op.experts.value.data
        if experts % self.shards:
            raise DistIRError(
                f"{describe(op)}: {experts} experts cannot be dealt out to {self.shards} "
                f"groups of devices evenly; choose an -e that divides {experts}"
            )
        before = rows_of(op.rows)
        after = (self.shards, before[1], places_needed(op, self.shards))
        load = op.assumed_imbalance if op.is_dropless else None
        limit = op.group_limit if op.is_dropless else None
        if limit is not None:
            sizes = *limit.get_values(), shape_of(op.ids)[2]
            limit = DenseArrayBase.from_list(i64, sizes)
        self._change(op.rows, _Change(before, after, load, limit))

    def _change(self, value: SSAValue, change: _Change) -> None:
        """
        Changes the shape of `value`: replaces its first dimensions as `change` says.
        """
        before, after = change.before, change.after
        if before == after or value in self.changed:
            return
        assert isinstance(value.type, TensorType)
        type_ = TensorType(value.type.element_type, [*after, *shape_of(value)[3:]])
        new = Rewriter.replace_value_with_new_type(value, type_)
        self.changed[new] = change
        self.pending.append(new)

    def _follow(self, op: Operation, index: int, change: _Change) -> None:
        """
        Changes the shapes of the results of `op`. The operand with index `index`
        already has its new shape.
        """
        before, after, load, limit = change
        if isinstance(op, GroupedOp) and load is not None:
            op.properties["imbalance"] = FloatAttr(load, f64)
            if limit is not None:
                op.properties["group_limit"] = limit
        if isinstance(op, CallOp):
            block = self.functions[op.callee.string_value()].body.block
            self._change(block.args[index], change)
            # The function has one type, so that its other calls change in the same way.
            return
        if isinstance(op, ReturnOp):
            function = op.parent_op()
            assert isinstance(function, FuncOp)
            for call in self.calls.get(function.sym_name.data, []):
                self._change(call.results[index], change)
            return
        if isinstance(op, _LEAVING):
            return
        if op.name in ("onnx.Reshape", "onnx.Expand"):
            self._reshape(op, before, after)
        for result in op.results:
            if shape_of(result)[:3] == before:
                self._change(result, change)

    def _reshape(self, op: Operation, before: _Rows, after: _Rows) -> None:
        """
        Replaces the constant shape of a Reshape or Expand that keeps the rows. Raises
        DistIRError if the op does not keep the rows.
        """
        sizes = direct_constant(op.operands[1])
        if sizes is None or tuple(sizes.tolist()[:3]) != before:
            raise DistIRError(
                f"{describe(op)} gives the rows of experts another shape, so that they cannot "
                f"be dealt out to groups of devices; leave out -e, or keep shards, groups and "
                f"places as the first dimensions between dispatch and combination"
            )
        new = np.array([*after, *sizes.tolist()[3:]], np.int64)
        scope = {n: a for n, a in op.attributes.items() if n == SCOPE}
        constant = operator("Constant").build_op(
            [], [op.operands[1].type], {"value": constant_attr(new)}, scope
        )
        block = op.parent
        assert block is not None
        block.insert_op_before(constant, op)
        op.operands[1] = constant.results[0]
