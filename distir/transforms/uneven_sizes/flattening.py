"""
Flattens parameters for their updates. An optimizer treats each array element
separately. If no dimension of a parameter can be divided among devices, the update can
therefore work on a one-dimensional tensor, padded with zeros at the end. The states of
the optimizer can be stored in the same form. Any number of devices can split such a
tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import FLATTENED
from distir.dialects.tensors import rank_of
from distir.dialects.train_ops.flattening import (
    FlattenOp,
    UnflattenOp,
    blocks_attribute,
)
from distir.dialects.train_ops.optimizers import SquareSumOp, UpdateOp
from distir.dialects.train_ops.splits import Split, shape_of_part
from distir.program import (
    argument_attributes,
    made_with,
    result_attributes,
    return_op,
    set_argument_attributes,
    set_result_attributes,
    updated_arguments,
)
from distir.program.source_forms import Flattened


def update_of(function: FuncOp, result: int) -> UpdateOp | None:
    """
    Returns the elementwise update that computes the result with index `result`, or None
    if no elementwise update computes it.
    """
    value = return_op(function).operands[result]
    while isinstance(value.owner, Operation) and value.owner.name == "onnx.Cast":
        value = value.owner.operands[0]
    owner = value.owner
    return owner if isinstance(owner, UpdateOp) and owner.IS_WHOLE else None


def flat_form(shape: Sequence[int], splits: Sequence[Split], parts: int) -> Flattened:
    """
    Returns the flat form of a tensor that `parts` devices can split evenly. `splits`
    divides the tensor into blocks that are flattened separately. Each block is padded
    to a multiple of `parts`.
    """
    block = shape_of_part(shape, splits)
    assert block is not None
    length = -(-prod(block) // parts) * parts
    return Flattened(tuple(shape), length, tuple(splits))


class UpdateFlattener:
    """
    Flattens updates of a program, in place. Call `flatten` for each update, then
    `finish`. The arguments of an update become flat arguments (`dist.flattened`),
    except for parameters that keep their shape. Gradients, and parameters that keep
    their shape, are flattened before the update, and new parameters get their shape
    back after the update.
    """

    def __init__(self, function: FuncOp):
        self.function = function
        self.results: dict[int, Flattened] = {}
        """The flat form of each flattened result, by index."""
        self.arguments: dict[int, Flattened] = {}
        """The flat form of each flattened argument, by index."""
        self.done: list[UpdateOp] = []
        """The updates of flattened parameters."""

    def flatten(self, op: UpdateOp, form: Flattened, stored: Sequence[int]) -> None:
        """
        Flattens an update, and the function's arguments with the indices `stored`. All
        other ops that use these arguments get them in their original shape.
        """
        for index in stored:
            self.arguments[index] = form
            argument = self.function.args[index]
            argument = Rewriter.replace_value_with_new_type(
                argument, _flat_type(argument, form)
            )
            self._unflatten_for_uses(argument, op, form)
        gradient = op.gradient_operand
        tensors = set(op.tensors)
        operands = [
            self._flat(value, form, None if value is gradient else op)
            if value in tensors and not self._is_flat(value)
            else value
            for value in op.operands
        ]
        new = made_with(op, operands, [_flat_type(r, form) for r in op.results])
        assert isinstance(new, UpdateOp)
        block = op.parent_block()
        assert block is not None
        block.insert_op_before(new, op)
        self.done.append(new)
        for old, result in zip(op.results, new.results, strict=True):
            result.name_hint = old.name_hint
            self._give(old, result, form)
        Rewriter.erase_op(op)
        self._erase_unused(gradient)

    def finish(self) -> None:
        """
        Marks the flat arguments and results, and updates the type of the function.
        """
        function = self.function
        attributes = argument_attributes(function)
        for index, form in self.arguments.items():
            attributes[index][FLATTENED] = form.attribute
        set_argument_attributes(function, attributes)
        attributes = result_attributes(function)
        for index, form in self.results.items():
            attributes[index][FLATTENED] = form.attribute
        set_result_attributes(function, attributes)
        function.update_function_type()

    def _is_flat(self, value: SSAValue) -> bool:
        return isinstance(value, BlockArgument) and value.index in self.arguments

    def _unflatten_for_uses(
        self, argument: SSAValue, update: UpdateOp, form: Flattened
    ) -> None:
        """
        Gives a flat argument its original shape for every op that uses it, except for
        `update`.
        """
        for user in dict.fromkeys(use.operation for use in argument.uses):
            if user is not update:
                op = _unflattened(argument, form)
                _block(user).insert_op_before(op, user)
                for i, operand in enumerate(user.operands):
                    if operand is argument:
                        user.operands[i] = op.tensor

    def _flat(
        self, value: SSAValue, form: Flattened, before: Operation | None
    ) -> SSAValue:
        """
        Returns `value`, which has the parameter's shape, in the flat form `form`. If
        `before` is None, `value` is a gradient and is flattened right after the op that
        computes it, so that its conversion and its clipping also work on the flat
        gradient. Otherwise `value` is flattened right before the op `before`.
        """
        owner = value.owner
        if before is None and isinstance(owner, Operation) and scales(owner):
            operands = [
                self._flat(v, form, None) if rank_of(v.type) else v
                for v in owner.operands
            ]
            new = made_with(owner, operands, [_flat_type(value, form)])
            _block(owner).insert_op_after(new, owner)
            new.results[0].name_hint = value.name_hint
            return new.results[0]
        for use in value.uses:
            if isinstance(use.operation, FlattenOp):
                return use.operation.flat
        op = FlattenOp(value, flat=_flat_type(value, form), blocks=_blocks(form.splits))
        op.flat.name_hint = value.name_hint
        if before is not None:
            _block(before).insert_op_before(op, before)
        elif isinstance(owner, Block):
            Rewriter.insert_op(op, InsertPoint.at_start(owner))
        else:
            _block(owner).insert_op_after(op, owner)
        for use in list(value.uses):
            if isinstance(use.operation, SquareSumOp):
                use.operation.operands[use.index] = op.flat
        return op.flat

    def _give(self, old: SSAValue, new: SSAValue, form: Flattened) -> None:
        """
        Replaces the result `old` by the flat result `new`. Ops that need the original
        shape get `new` unflattened.
        """
        updates = updated_arguments(self.function)
        whole: SSAValue | None = None
        for use in list(old.uses):
            user = use.operation
            if isinstance(user, ReturnOp) and updates.get(use.index) in self.arguments:
                user.operands[use.index] = new
                self.results[use.index] = form
                continue
            if user.name == "onnx.Cast":
                flat = made_with(user, [new], [_flat_type(user.results[0], form)])
                _block(user).insert_op_before(flat, user)
                flat.results[0].name_hint = user.results[0].name_hint
                self._give(user.results[0], flat.results[0], form)
                Rewriter.erase_op(user)
                continue
            if whole is None:
                op = _unflattened(new, form)
                _block(user).insert_op_before(op, user)
                whole = op.tensor
            user.operands[use.index] = whole

    def _erase_unused(self, value: SSAValue) -> None:
        """Erases conversions and scalings of a gradient that are no longer used."""
        owner = value.owner
        if isinstance(owner, Operation) and value.first_use is None and scales(owner):
            operands = list(owner.operands)
            Rewriter.erase_op(owner)
            for operand in operands:
                self._erase_unused(operand)


def scales(op: Operation) -> bool:
    """Whether `op` converts a tensor or multiplies it by a scalar."""
    if op.name == "onnx.Cast":
        return True
    return op.name == "onnx.Mul" and sorted(
        bool(rank_of(v.type)) for v in op.operands
    ) == [
        False,
        True,
    ]


def _flat_type(value: SSAValue, form: Flattened) -> TensorType[Any]:
    assert isinstance(value.type, TensorType)
    return TensorType(value.type.element_type, form.flat_shape)


def _blocks(splits: Sequence[Split]) -> Any:
    return blocks_attribute(splits) if splits else None


def _unflattened(flat: SSAValue, form: Flattened) -> UnflattenOp:
    assert isinstance(flat.type, TensorType)
    type_ = TensorType(flat.type.element_type, form.shape)
    op = UnflattenOp(flat, tensor=type_, blocks=_blocks(form.splits))
    op.tensor.name_hint = flat.name_hint
    return op


def _block(op: Operation) -> Block:
    block = op.parent_block()
    assert block is not None
    return block
