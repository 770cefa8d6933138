"""Makes a function from the ops of each stage and phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import FunctionType, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, OpResult, Region, SSAValue

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import operator
from distir.sharding.placement import COMBINED_BY, PartialPlacement
from distir.transforms.pipelines.fold import (
    NUMBER,
    Fold,
    NeedsNumber,
    is_repeated,
    number_type,
    repeated_ops,
)
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.over_time import over_time, reduction_over_time
from distir.transforms.pipelines.structure import Structure

Make = Callable[[Sequence[SSAValue]], Sequence[Operation]]
"""
A function that makes ops for operands. The results of the last op are the results.
"""


class BlockBody:
    """The body of a function that is built as IR."""

    def __init__(self) -> None:
        self.block = Block()

    def arguments(self, types: Sequence[Attribute]) -> Sequence[SSAValue]:
        """Starts the body with arguments of the given types and returns them."""
        self.block = Block(arg_types=types)
        return self.block.args

    def type_of(self, value: SSAValue) -> Attribute:
        """Returns the type of `value`."""
        return value.type

    def name(self, value: SSAValue, hint: str | None) -> None:
        """Names `value` after `hint` if it has no name yet."""
        if value.name_hint is None:
            value.name_hint = hint

    def op(self, make: Make, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
        """
        Adds the ops that `make` returns for `operands`. Returns the results of the last
        op.
        """
        ops = make(operands)
        self.block.add_ops(ops)
        return ops[-1].results

    def function(
        self,
        name: str,
        results: Sequence[SSAValue],
        visibility: StringAttr | None = None,
    ) -> FuncOp:
        """Returns a function `name` with the finished body, which returns `results`."""
        self.block.add_op(ReturnOp(*results))
        types = [a.type for a in self.block.args], [v.type for v in results]
        body = Region(self.block)
        return FuncOp(name, FunctionType.from_lists(*types), body, visibility)


@dataclass(eq=False)
class StageOps:
    """
    The ops that one stage runs in one phase of a micro-batch, in program order. The
    results of this group of ops are:

    - `passed`: results that other groups use for the same micro-batch;
    - `accumulated`: results that are summed over the micro-batches;
    - `collected`: results whose parts for all micro-batches are joined at the end.
    """

    name: str
    stage: int
    ops: Sequence[Operation]
    passed: list[SSAValue] = field(default_factory=list[SSAValue])
    accumulated: list[SSAValue] = field(default_factory=list[SSAValue])
    collected: list[SSAValue] = field(default_factory=list[SSAValue])

    @cached_property
    def used(self) -> list[SSAValue]:
        """The values that the ops take as operands, each once."""
        return list(dict.fromkeys([v for op in self.ops for v in op.operands]))

    @cached_property
    def kept(self) -> list[SSAValue]:
        """The values that the group's function returns for each micro-batch."""
        return list(dict.fromkeys((*self.passed, *self.collected)))

    @staticmethod
    def of(
        name: str, stage: int, ops: Sequence[Operation], kinds: Structure
    ) -> StageOps:
        """
        Returns the group of the ops `ops`. Finds the results that are used outside of
        the group.
        """
        group, own = StageOps(name, stage, ops), set(ops)
        for value in (r for op in ops for r in op.results):
            outside = {u.operation for u in value.uses} - own
            after = [
                op for op in outside if kinds.kinds.get(op, Kind.AFTER) is Kind.AFTER
            ]
            if len(after) < len(outside):
                group.passed.append(value)
            if after:
                partial = isinstance(over_time(value), PartialPlacement)
                (group.accumulated if partial else group.collected).append(value)
        return group


@dataclass(frozen=True, eq=False)
class StageFunction:
    """
    The interface of the function for a group of ops.

    - `symbol`: the name of the function;
    - `inputs`: the values that are the function's first arguments;
    - `added`: the accumulated values to which the function adds, which are its next
      arguments;
    - `numbered`: whether the last argument is the index of the micro-batch.

    The function returns the values that the group keeps for each micro-batch, then the
    accumulated values.
    """

    symbol: SymbolRefAttr
    inputs: tuple[SSAValue, ...]
    added: tuple[SSAValue, ...]
    numbered: bool


def needed_inside(value: SSAValue, structure: Structure) -> Sequence[SSAValue] | None:
    """
    Returns the values from which a stage function recomputes `value`, a result of
    another group of ops. Returns None if the function takes `value` as an argument
    instead.
    """
    # Not `isinstance`, which is slow where the answer is no.
    if type(value) is not OpResult:
        return None
    owner = value.op
    kind = structure.kinds[owner]
    if kind is Kind.BEFORE:
        is_inside = owner.name == "onnx.Constant" or value in structure.gathered
        return owner.operands if is_inside else None
    if kind is Kind.DIVIDE and is_repeated(owner):
        repeat = owner.operands[0].owner
        assert isinstance(repeat, Operation)
        return repeat.operands[:1]
    return None


class StageFunctionBuilder:
    """
    Builds the function of a group of ops on the mesh of the group's stage. The function
    adds results of the group to the accumulated values `added`.
    """

    def __init__(
        self,
        structure: Structure,
        fold: Fold,
        group: StageOps,
        mesh: str,
        added: Sequence[SSAValue],
    ):
        self.structure = structure
        self.fold = fold
        self.group = group
        self.mesh = mesh
        self.added = tuple(added)
        self.numbered = False
        self.inputs: list[SSAValue] = []
        self._find_inputs()

    def build(self, name: str) -> FuncOp:
        """Builds the function with the name `name` and returns it."""
        try:
            return self._build(name)
        except NeedsNumber:
            self.numbered = True
            return self._build(name)

    def interface(self, made: FuncOp) -> StageFunction:
        """
        Returns the interface of the function `made`, which `build` returned: its name,
        and the values that a call must pass.
        """
        symbol = SymbolRefAttr(made.sym_name.data)
        return StageFunction(symbol, tuple(self.inputs), self.added, self.numbered)

    def _find_inputs(self) -> None:
        """
        Finds the values that the ops of the group use but do not compute, in the order
        of their first use.
        """
        known: set[SSAValue] = {r for op in self.group.ops for r in op.results}
        pending = [v for op in reversed(self.group.ops) for v in reversed(op.operands)]
        while pending:
            value = pending.pop()
            if value in known:
                continue
            known.add(value)
            needed = needed_inside(value, self.structure)
            if needed is None:
                self.inputs.append(value)
            else:
                pending += reversed(needed)

    def _build(self, name: str) -> FuncOp:
        fold, mesh = self.fold, self.mesh
        self.body = body = BlockBody()
        given = [*self.inputs, *self.added]
        types = [fold.type(v.type, mesh) for v in given]
        hints = [*(v.name_hint for v in self.inputs), *("sum" for _ in self.added)]
        if self.numbered:
            types.append(number_type(mesh))
            hints.append(NUMBER)
        args = body.arguments(types)
        for arg, hint in zip(args, hints, strict=True):
            body.name(arg, hint)
        count, end = len(self.inputs), len(given)
        self.values = dict(zip(self.inputs, args[:count], strict=True))
        sums = dict(zip(self.added, args[count:end], strict=True))
        self.number = args[end:]
        for op in self.group.ops:
            self._op(op)
            for result in op.results:
                if result in sums:
                    sums[result] = self._sum(result, sums[result])
        results = [self.values[v] for v in self.group.kept]
        results += [
            sums[v] if v in sums else self.values[v] for v in self.group.accumulated
        ]
        return body.function(name, results, StringAttr("private"))

    def _value(self, value: SSAValue) -> SSAValue:
        if value not in self.values:
            owner = value.owner
            assert isinstance(owner, Operation)
            if self.structure.kinds[owner] is Kind.DIVIDE:
                self._repeat(owner)
            else:
                self._op(owner)
        return self.values[value]

    def _op(self, op: Operation) -> None:
        numbered = self.numbered

        def make(given: Sequence[SSAValue]) -> Sequence[Operation]:
            number = given[-1] if numbered else None
            operands = given[:-1] if numbered else given
            return self.fold.op(op, operands, self.mesh, number)

        operands = [*[self._value(v) for v in op.operands], *self.number]
        made = self.body.op(make, operands)
        for old, new in zip(op.results, made, strict=True):
            self.body.name(new, old.name_hint)
            self.values[old] = new

    def _repeat(self, op: Operation) -> None:
        """
        Adds ops in place of `op`, which takes a micro-batch's part of a value that
        repeats along the batch. The new ops repeat the value along one micro-batch, and
        each device makes only its part.
        """
        expand = op.operands[0].owner
        assert isinstance(expand, Operation)
        target = self.fold.type(op.results[0].type, self.mesh)
        space = self.fold.space(self.mesh)

        def make(given: Sequence[SSAValue]) -> Sequence[Operation]:
            return repeated_ops(given[0], target, space)

        source = self._value(expand.operands[0])
        self.values[op.results[0]] = self.body.op(make, [source])[0]

    def _sum(self, value: SSAValue, so_far: SSAValue) -> SSAValue:
        """
        Returns the accumulated value `so_far` combined with this micro-batch's `value`.
        """
        name, owner = COMBINED_BY[reduction_over_time(value)], value.owner

        def make(given: Sequence[SSAValue]) -> Sequence[Operation]:
            add = operator(name).build_op(given, [given[1].type])
            if isinstance(owner, Operation) and SCOPE in owner.attributes:
                add.attributes[SCOPE] = owner.attributes[SCOPE]
            return [add]

        (added,) = self.body.op(make, [so_far, self.values[value]])
        self.body.name(added, value.name_hint)
        return added
