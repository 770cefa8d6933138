"""Outlines groups of ops: moves each group into a function of its own."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.constants import direct_constant
from distir.dialects.dist_attributes import SCOPE
from distir.program import (
    argument_attributes,
    made_with,
    return_op,
    set_argument_attributes,
    unique_name,
)
from distir.transforms.repeats.naming import general_attributes, general_scope
from distir.transforms.repeats.op_sequence import common_scope


class GroupOutliner:
    """
    Moves groups of ops into functions and replaces the groups by calls. Equal groups
    share one function. `attributes` are the attributes of the new functions.
    """

    def __init__(
        self,
        module: ModuleOp,
        name: str,
        attributes: dict[str, Attribute] | None = None,
    ):
        self.module = module
        self.name = name
        self.attributes = attributes or {}
        self._made: dict[object, FuncOp] = {}

    def outline(self, ops: Sequence[Operation], result: SSAValue) -> CallOp:
        """
        Replaces a group of ops by a call of a function, and returns the call. `ops` are
        in the order of the program. `result` is the only value of the group that other
        ops use.
        """
        inside = set(ops)
        inputs = list(
            dict.fromkeys(
                value
                for op in ops
                for value in op.operands
                if value.owner not in inside and direct_constant(value) is None
            )
        )
        made = self._build(ops, inputs, result)
        key = content_of(made.body.block)
        if key in self._made:
            known = self._made[key]
            _generalise(known, made)
            made = known
        else:
            made.properties["sym_name"] = StringAttr(
                unique_name(self.module, self.name)
            )
            self.module.body.block.add_op(made)
            self._made[key] = made
        call = CallOp(made.sym_name.data, inputs, [result.type])
        scope = ".".join(common_scope(list(ops)))
        if scope:
            call.attributes[SCOPE] = SCOPE.attr(scope)
        call.results[0].name_hint = result.name_hint
        owner = result.owner
        assert isinstance(owner, Operation)
        Rewriter.insert_op(call, InsertPoint.after(owner))
        result.replace_all_uses_with(call.results[0])
        for op in reversed(ops):
            Rewriter.erase_op(op)
        return call

    def _build(
        self, ops: Sequence[Operation], inputs: Sequence[SSAValue], result: SSAValue
    ) -> FuncOp:
        """Returns the function of a group. The function is not added to the module."""
        block = Block(arg_types=[value.type for value in inputs])
        values: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
        for value, argument in values.items():
            argument.name_hint = value.name_hint
        for op in ops:
            for value in op.operands:
                if (
                    value not in values
                ):  # a constant, which each function has for itself
                    assert isinstance(value.owner, Operation)
                    copy = value.owner.clone()
                    block.add_op(copy)
                    values[value] = copy.results[0]
            copy = made_with(op, [values[v] for v in op.operands], op.result_types)
            block.add_op(copy)
            for before, after in zip(op.results, copy.results, strict=True):
                after.name_hint = before.name_hint
                values[before] = after
        block.add_op(ReturnOp(values[result]))
        types = [arg.type for arg in block.args], [result.type]
        function = FuncOp(self.name, types, Region(block), "private")
        function.attributes.update(self.attributes)
        owner = ops[0].parent_op()
        assert isinstance(owner, FuncOp)
        known = dict(zip(owner.args, argument_attributes(owner), strict=True))
        set_argument_attributes(function, [dict(known.get(v, {})) for v in inputs])  # type: ignore[call-overload]
        return function


def content_of(block: Block) -> object:
    """
    Returns a key that is equal for blocks that have the same ops in the same order.
    """
    numbers: dict[SSAValue, int] = {}
    for argument in block.args:
        numbers[argument] = len(numbers)
    rows: list[object] = [tuple(block.arg_types)]
    for op in block.ops:
        rows.append(
            (
                op.name,
                tuple(numbers[value] for value in op.operands),
                tuple(op.result_types),
                tuple(op.regions),
                frozenset(op.properties.items()),
                frozenset((k, v) for k, v in op.attributes.items() if k != SCOPE),
            )
        )
        for value in op.results:
            numbers[value] = len(numbers)
    return tuple(rows)


def _generalise(function: FuncOp, other: FuncOp) -> None:
    """
    Changes the scopes and the attributes of arguments of `function`, so that they also
    apply to `other`, a function with the same ops.
    """
    for own, its in zip(function.body.block.ops, other.body.block.ops, strict=True):
        if own is not return_op(function):
            scope = general_scope([own, its])
            if scope:
                own.attributes[SCOPE] = SCOPE.attr(scope)
            else:
                own.attributes.pop(SCOPE, None)
    pairs = zip(argument_attributes(function), argument_attributes(other), strict=True)
    set_argument_attributes(function, [general_attributes([a, b]) for a, b in pairs])
