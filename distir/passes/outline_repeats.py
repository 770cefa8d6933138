"""
`outline-repeats`: a model of n equal layers becomes one function that is called n times.

```mlir
%1 = onnx.MatMul(%0, %w0) {scope = "layers.0.fc"} : ...
%2 = onnx.Relu(%1) {scope = "layers.0.act"} : ...
%3 = onnx.MatMul(%2, %w1) {scope = "layers.1.fc"} : ...
%4 = onnx.Relu(%3) {scope = "layers.1.act"} : ...
```

becomes, with `min-ops=2`,

```mlir
%1 = func.call @layers(%0, %w0) {scope = "layers.0"} : ...
%2 = func.call @layers(%1, %w1) {scope = "layers.1"} : ...
```

and `func.func private @layers`, whose ops have the scopes `layers.*.fc` and
`layers.*.act`: a part of a name that is another number in each call is written `*`.
`inline-calls` is the inverse.

Names and scopes play no part in what is found, only in what the results are called.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import NAME, OF, SCOPE
from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.program import (
    argument_attributes,
    functions,
    name_hint,
    scope_of,
    set_argument_attributes,
)
from distir.transforms.repeats.mixed import find_mixed_pair
from distir.transforms.repeats.op_sequence import (
    OpSequence,
    Repeat,
    Tokens,
    common_scope,
    constant_of,
)
from distir.transforms.repeats.tandem import find_tandem_repeat

VARYING = "*"


def generalise(names: Sequence[str]) -> str | None:
    """
    The one name for several dotted names that differ in numbers only: `h.*.attn` for
    `h.0.attn` and `h.1.attn`. None where they differ in more.
    """
    split = [name.split(".") for name in names]
    if len({len(parts) for parts in split}) != 1:
        return None
    general: list[str] = []
    for parts in zip(*split, strict=True):
        if len(set(parts)) == 1:
            general.append(parts[0])
        elif all(part == VARYING or part.isdecimal() for part in parts):
            general.append(VARYING)
        else:
            return None
    return ".".join(general)


def _general_scope(ops: Sequence[Operation]) -> str:
    """The scope of an op in the function, from those of the ops it stands for."""
    scopes = [scope_of(op) for op in ops]
    general = generalise(scopes)
    # Ops from unlike places: only what they have in common is true of all of them.
    return ".".join(common_scope(list(ops))) if general is None else general


def _general_hint(values: Sequence[SSAValue]) -> str | None:
    """A name hint for all these values, without the numbers in which theirs differ."""
    hints = [value.name_hint or "" for value in values]
    split = [re.split(r"([._]?\d+)", hint) for hint in hints]
    if len({tuple(parts[::2]) for parts in split}) == 1:
        columns = zip(*split, strict=True)
        hint = "".join(c[0] for c in columns if len(set(c)) == 1)
    else:
        shorter = {"".join(parts[::2]) for parts in split}
        hint = shorter.pop() if len(shorter) == 1 else ""
    return name_hint(hint)


def _general_attributes(
    dictionaries: Sequence[dict[str, Attribute]],
) -> dict[str, Attribute]:
    """What the attributes of all arguments that a parameter is bound to agree on."""
    first = dictionaries[0]
    common = {
        key: attribute
        for key, attribute in first.items()
        if key != OF and all(d.get(key) == attribute for d in dictionaries)
    }
    names = [d.get(NAME) for d in dictionaries]
    texts = [name.data for name in names if isinstance(name, StringAttr)]
    if len(texts) == len(names):
        name = generalise(texts)
        if name is not None:
            common[NAME] = StringAttr(name)
    return common


def _function_name(scopes: Sequence[str], taken: set[str]) -> str:
    """A new symbol: what the calls' scopes have in common, or `repeat0`, `repeat1`..."""
    general = (generalise(scopes) or "").split(".")
    words = [part for part in general if part not in ("", VARYING)]
    name = re.sub(r"[^A-Za-z0-9_]", "_", "_".join(words))
    if not name:
        name, first = "repeat", 0
    else:
        first = 1
        if name[0].isdigit():
            name = f"_{name}"
        if name not in taken:
            return name
        name += "_"
    while f"{name}{first}" in taken:
        first += 1
    return f"{name}{first}"


class Outliner:
    """Moves the windows of one repeat into a function and calls it in their place."""

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
        """Rewrites the block; the new function is not in the module yet."""
        slots = self._slots()
        constants = self._constants()
        outlined = self._build(_function_name(self.scopes, taken), slots)
        for index in range(len(self.windows)):
            self._call(index, outlined, list(slots.values()))
        for constant in constants:
            if not any(result.uses for result in constant.results):
                Rewriter.erase_op(constant)
        return outlined

    def _constants(self) -> list[Operation]:
        found = (
            constant_of(operand)
            for window in self.windows
            for op in window
            for operand in op.operands
        )
        return list(dict.fromkeys(op for op in found if op is not None))

    def _slots(self) -> dict[tuple[SSAValue, ...], tuple[int, int]]:
        """
        The parameters in order of first use: the values each is bound to in the windows,
        and the operand (operation, index) that takes it first. Operands that have the
        same values in every window share a parameter.
        """
        inside = set(self.windows[0])
        slots: dict[tuple[SSAValue, ...], tuple[int, int]] = {}
        for position, ops in enumerate(zip(*self.windows, strict=True)):
            for index, operand in enumerate(ops[0].operands):
                if operand.owner not in inside and constant_of(operand) is None:
                    values = tuple(op.operands[index] for op in ops)
                    slots.setdefault(values, (position, index))
        return slots

    def _build(self, name: str, bindings: Collection[tuple[SSAValue, ...]]) -> FuncOp:
        block = Block(arg_types=[values[0].type for values in bindings])
        parameters = dict(zip(bindings, block.args, strict=True))
        for values, parameter in parameters.items():
            parameter.name_hint = _general_hint(values)
        inner: dict[SSAValue, SSAValue] = {}
        constants: dict[int, SSAValue] = {}
        builder = Builder(InsertPoint.at_end(block))
        for ops in zip(*self.windows, strict=True):
            model, scope = ops[0], _general_scope(ops)
            operands: list[SSAValue] = []
            for column, operand in enumerate(model.operands):
                constant = constant_of(operand)
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
                result.name_hint = _general_hint(values)
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
        """Gives the parameters what the caller's arguments they are bound to agree on."""
        attributes = argument_attributes(self.function)
        set_argument_attributes(
            outlined,
            [
                _general_attributes([attributes[value.index] for value in arguments])
                if len(arguments := [v for v in values if isinstance(v, BlockArgument)])
                == len(values)
                else {}
                for values in bindings
            ],
        )

    def _call(
        self, index: int, outlined: FuncOp, slots: Sequence[tuple[int, int]]
    ) -> None:
        window, first, scope = (
            self.windows[index],
            self.firsts[index],
            self.scopes[index],
        )
        # Read now: where an earlier window was, these are the results of its call.
        arguments = [window[position].operands[column] for position, column in slots]
        call = CallOp(
            outlined.sym_name.data, arguments, outlined.function_type.outputs.data
        )
        if scope:
            call.attributes[SCOPE] = StringAttr(scope)
        _gather(window, first)
        Rewriter.insert_op(call, InsertPoint.before(first))
        for (position, result), new in zip(self.results, call.results, strict=True):
            old = window[position].results[result]
            new.name_hint = old.name_hint
            old.replace_all_uses_with(new)
        for op in reversed(window):
            Rewriter.erase_op(op)


def _copy(op: Operation, operands: Sequence[SSAValue], scope: str) -> Operation:
    attributes = {k: v for k, v in op.attributes.items() if k != SCOPE}
    if scope:
        attributes[SCOPE] = StringAttr(scope)
    return type(op).create(
        operands=operands,
        result_types=[result.type for result in op.results],
        properties=op.properties.copy(),
        attributes=attributes,
    )


def _gather(window: list[Operation], first: Operation) -> None:
    """
    Moves the ops that stand between those of a window and do not depend on them before
    the first of the window: a call there has all it needs.
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
    """Outlines every repeat of a function; returns the new functions."""
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


@dataclass(frozen=True)
class OutlineRepeatsPass(DistIRPass):
    """
    Outlines sequences of operations that occur at least twice in a row, each working on
    what the one before computed, into functions, the longest first. Repeats within the
    new functions are outlined in turn.

    - `min-ops`: the fewest operations (not counting constants) that make a function.
    - `independent`: also outlines repeats that do not work on each other's results, such
      as the projections of an attention layer, or experts.
    """

    name = "outline-repeats"

    min_ops: int = 4
    independent: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.min_ops < 2:
            raise DistIRError(
                f"outline-repeats: min-ops is {self.min_ops}, but a function for fewer "
                f"than 2 operations saves nothing; give min-ops=2 or more"
            )
        taken = set(functions(op))
        pending = list(functions(op).values())
        while pending:
            function = pending.pop(0)
            if len(function.body.blocks) != 1:
                continue
            outlined = outline_function(function, taken, self.min_ops, self.independent)
            Rewriter.insert_op(outlined, InsertPoint.after(function))
            pending += outlined
