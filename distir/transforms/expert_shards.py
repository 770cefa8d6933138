"""Divides the experts of a program into shards, which can be on different devices."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import FunctionType, ModuleOp, TensorType
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

_LEAVING = (CombineOp, CombineWeightsGradOp, GroupedProductGradOp)
"""The ops that have rows of experts as operands but not as results."""


def places_needed(op: ExpertPlacesOp, shards: int) -> int:
    """
    Returns the number of places that a group needs in each of `shards` shards. The
    places must suffice for all choices of the group's tokens.
    """
    _, tokens, choices = shape_of(op.ids)
    own = op.experts.value.data // shards
    return min(own * op.capacity.value.data, tokens * choices)


def deal_out_experts(module: ModuleOp, shards: int) -> None:
    """
    Divides the experts of every mixture in a sequential program into `shards` shards,
    in place. The program's results stay the same. Values between dispatch and
    combination get other shapes. If there are more shards than experts that a token
    chooses, more places stay empty. Raises DistIRError if `shards` does not divide the
    number of experts, or if the program reshapes the rows of experts.
    """
    _Dealer(module, shards).run()


def rows_and_taken(op: ConstrainOp) -> tuple[SSAValue, int] | None:
    """
    Returns the owner of the rows that `op` constrains, and the number of used rows. The
    owner is the result `rows` of `train.expert_places`, which says to which experts the
    rows belong. The number counts the used rows of a group over all shards. Returns
    None if no op uses the constrained rows.
    """
    for use in op.result.uses:
        user = use.operation
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
        self.changed: dict[SSAValue, tuple[_Rows, _Rows]] = {}
        """
        For each value with a new shape, its rows before and after the change. Rows are
        given as the numbers of shards, groups and places.
        """
        self.pending: list[SSAValue] = []

    def run(self) -> None:
        for op in list(self.module.walk()):
            if isinstance(op, ExpertPlacesOp):
                self._deal_out(op)
        while self.pending:
            value = self.pending.pop()
            for use in list(value.uses):
                self._follow(use.operation, use.index, *self.changed[value])
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
        self._change(op.rows, before, after)

    def _change(self, value: SSAValue, before: _Rows, after: _Rows) -> None:
        """
        Changes the first dimensions of `value` from `before` to `after`. These are its
        numbers of shards, groups and places.
        """
        if before == after or value in self.changed:
            return
        assert isinstance(value.type, TensorType)
        type_ = TensorType(value.type.element_type, [*after, *shape_of(value)[3:]])
        new = Rewriter.replace_value_with_new_type(value, type_)
        self.changed[new] = before, after
        self.pending.append(new)

    def _follow(self, op: Operation, index: int, before: _Rows, after: _Rows) -> None:
        """
        Changes the shapes of the results of `op`, whose operand `index` has a new
        shape.
        """
        if isinstance(op, CallOp):
            block = self.functions[op.callee.string_value()].body.block
            self._change(block.args[index], before, after)
            # The function has one type, so that its other calls change in the same way.
            return
        if isinstance(op, ReturnOp):
            function = op.parent_op()
            assert isinstance(function, FuncOp)
            for call in self.calls.get(function.sym_name.data, []):
                self._change(call.results[index], before, after)
            return
        if isinstance(op, _LEAVING):
            return
        if op.name in ("onnx.Reshape", "onnx.Expand"):
            self._reshape(op, before, after)
        for result in op.results:
            if shape_of(result)[:3] == before:
                self._change(result, before, after)

    def _reshape(self, op: Operation, before: _Rows, after: _Rows) -> None:
        """
        Replaces the constant shape of a Reshape or Expand that keeps the rows. Raises
        DistIRError if the op does not keep them.
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
