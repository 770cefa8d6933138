"""Moves repeated ops into functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from xdsl.builder import Builder
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import SCOPE
from distir.program import argument_attributes, made_with, set_argument_attributes
from distir.transforms.repeats.mixed import find_mixed_pair
from distir.transforms.repeats.naming import (
    function_name,
    general_attributes,
    general_hint,
    general_scope,
)
from distir.transforms.repeats.op_sequence import (
    OpSequence,
    Repeat,
    Tokens,
    common_scope,
    defining_constant,
    escaping_results,
)
from distir.transforms.repeats.tandem import find_tandem_repeat


class Outliner:
    """
    Moves the ops of one repeat into a function and replaces each window of the repeat
    by a call.
    """

    def __init__(
        self, function: FuncOp, sequence: OpSequence, repeat: Repeat, tokens: Tokens
    ):
        self.function = function
        self.tokens = tokens
        self.windows = [[sequence.ops[row] for row in w] for w in repeat.windows]
        self.firsts = [sequence.ops[min(window)] for window in repeat.windows]
        self.results = sorted(repeat.results)
        self.scopes = [".".join(common_scope(window)) for window in self.windows]

    def outline(self, taken: set[str]) -> FuncOp:
        """
        Rewrites the block and returns the new function, which is not in the module yet.
        Its name is not among the names in `taken`.
        """
        slots = self._slots()
        constants = self._constants()
        outlined = self._build(function_name(self.scopes, taken), slots)
        for index in range(len(self.windows)):
            self._call(index, outlined, list(slots.values()))
        for constant in constants:
            if not any(result.uses for result in constant.results):
                Rewriter.erase_op(constant)
        return outlined

    def _constants(self) -> list[Operation]:
        found = (
            defining_constant(operand)
            for window in self.windows
            for op in window
            for operand in op.operands
        )
        return list(dict.fromkeys(op for op in found if op is not None))

    def _slots(self) -> dict[tuple[SSAValue, ...], tuple[int, int]]:
        """
        Returns the parameters of the new function, in the order of their first use. A
        key has the values that the parameter has in all windows. The entry of the key
        is the first operand that uses the parameter, a pair of the op's index and the
        operand's index. Operands with the same values in every window share a
        parameter.
        """
        inside = set(self.windows[0])
        slots: dict[tuple[SSAValue, ...], tuple[int, int]] = {}
        for position, ops in enumerate(zip(*self.windows, strict=True)):
            for index, operand in enumerate(ops[0].operands):
                if operand.owner not in inside and defining_constant(operand) is None:
                    values = tuple(op.operands[index] for op in ops)
                    slots.setdefault(values, (position, index))
        return slots

    def _build(self, name: str, bindings: Collection[tuple[SSAValue, ...]]) -> FuncOp:
        block = Block(arg_types=[values[0].type for values in bindings])
        parameters = dict(zip(bindings, block.args, strict=True))
        for values, parameter in parameters.items():
            parameter.name_hint = general_hint(values)
        inner: dict[SSAValue, SSAValue] = {}
        constants: dict[int, SSAValue] = {}
        builder = Builder(InsertPoint.at_end(block))
        for ops in zip(*self.windows, strict=True):
            model, scope = ops[0], general_scope(ops)
            operands: list[SSAValue] = []
            for column, operand in enumerate(model.operands):
                constant = defining_constant(operand)
                if operand in inner:
                    operands.append(inner[operand])
                elif constant is None:
                    values = tuple(op.operands[column] for op in ops)
                    operands.append(parameters[values])
                else:
                    token = self.tokens.of(constant)
                    if token not in constants:
                        copy = builder.insert(_copy(constant, [], scope))
                        copy.results[0].name_hint = operand.name_hint
                        constants[token] = copy.results[0]
                    operands.append(constants[token])
            copy = builder.insert(_copy(model, operands, scope))
            for column, result in enumerate(copy.results):
                values = tuple(op.results[column] for op in ops)
                result.name_hint = general_hint(values)
                inner[model.results[column]] = result
        returned = [inner[self.windows[0][i].results[r]] for i, r in self.results]
        builder.insert(ReturnOp(*returned))
        types = [arg.type for arg in block.args], [value.type for value in returned]
        outlined = FuncOp(name, types, Region(block), "private")
        self._describe(outlined, bindings)
        return outlined

    def _describe(
        self, outlined: FuncOp, bindings: Collection[tuple[SSAValue, ...]]
    ) -> None:
        """
        Sets the attributes of the new function's parameters. A parameter gets an
        attribute if all arguments that the caller passes for it agree on the attribute.
        """
        attributes = argument_attributes(self.function)
        set_argument_attributes(
            outlined,
            [
                general_attributes([attributes[value.index] for value in arguments])
                if len(arguments := [v for v in values if isinstance(v, BlockArgument)])
                == len(values)
                else {}
                for values in bindings
            ],
        )

    def _call(
        self, index: int, outlined: FuncOp, slots: Sequence[tuple[int, int]]
    ) -> None:
        window, first = self.windows[index], self.firsts[index]
        scope = self.scopes[index]
        # Read only now: results of earlier windows have become results of their calls.
        arguments = [window[position].operands[column] for position, column in slots]
        call = CallOp(
            outlined.sym_name.data, arguments, outlined.function_type.outputs.data
        )
        if scope:
            call.attributes[SCOPE] = SCOPE.attr(scope)
        _gather(window, first)
        Rewriter.insert_op(call, InsertPoint.before(first))
        for (position, result), new in zip(self.results, call.results, strict=True):
            old = window[position].results[result]
            new.name_hint = old.name_hint
            old.replace_all_uses_with(new)
        for op in reversed(window):
            Rewriter.erase_op(op)


def _copy(op: Operation, operands: Sequence[SSAValue], scope: str) -> Operation:
    copy = made_with(op, operands, op.result_types)
    copy.attributes.pop(SCOPE, None)
    if scope:
        copy.attributes[SCOPE] = SCOPE.attr(scope)
    return copy


def _gather(window: list[Operation], first: Operation) -> None:
    """
    Moves ops that are between the ops of a window to a place before the window, if they
    do not depend on it. A call at the position of `first`, the first op of the window,
    can then use all its operands.
    """
    members = set(window)
    behind: set[Operation] = set()
    remaining = len(members)
    op: Operation | None = first
    while remaining:
        assert op is not None
        following = op.next_op
        if op in members:
            remaining -= 1
        elif any(v.owner in members or v.owner in behind for v in op.operands):
            behind.add(op)
        else:
            op.detach()
            Rewriter.insert_op(op, InsertPoint.before(first))
        op = following


def outline_function(
    function: FuncOp, taken: set[str], min_ops: int, independent: bool
) -> list[FuncOp]:
    """
    Moves every repeat in a function into a new function, and returns the new functions.
    Repeats have windows of at least `min_ops` ops. With `independent`, windows need not
    use results of each other. New names differ from the names in `taken`, and are added
    to `taken`.
    """
    tokens = Tokens()
    outlined: list[FuncOp] = []
    block = function.body.block
    while True:
        sequence = OpSequence(block, tokens)
        repeat = find_tandem_repeat(sequence, min_ops, independent)
        repeat = repeat or find_mixed_pair(sequence, min_ops)
        if repeat is None:
            return outlined
        new = Outliner(function, sequence, repeat, tokens).outline(taken)
        taken.add(new.sym_name.data)
        outlined.append(new)


def outline_runs(
    function: FuncOp,
    taken: set[str],
    min_ops: int,
    stops: Callable[[Operation], bool],
) -> list[FuncOp]:
    """
    Moves every sequence of at least `min_ops` consecutive ops into a new function, and
    returns the new functions. A sequence ends before an op for which `stops` is true.
    New names differ from the names in `taken`, and are added to `taken`.
    """
    tokens = Tokens()
    sequence = OpSequence(function.body.block, tokens)
    runs: list[list[int]] = [[]]
    for row, op in enumerate(sequence.ops):
        if stops(op):
            runs.append([])
        else:
            runs[-1].append(row)
    outlined: list[FuncOp] = []
    for run in runs:
        if len(run) >= min_ops:
            repeat = Repeat([run], escaping_results(sequence, run))
            new = Outliner(function, sequence, repeat, tokens).outline(taken)
            taken.add(new.sym_name.data)
            outlined.append(new)
    return outlined
