"""A function for each stage and phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import FunctionType, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from distir.dialects.dist import (
    SCOPE,
)
from distir.dialects.onnx import operator
from distir.transforms.pipelines.fold import Fold, NeedsNumber
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.over_time import over_time
from distir.transforms.pipelines.part import is_repeated, repeated_ops
from distir.transforms.pipelines.structure import Structure

ACCUMULATE = {"sum": "Add", "max": "Max", "min": "Min"}
"""The operator that adds one more micro-batch to a value."""


@dataclass(eq=False)
class StageOps:
    """
    The ops that one stage runs in one phase of a micro-batch, in program order.

    - `passed`: results that other groups need for the same micro-batch;
    - `accumulated`: results that are added up over the micro-batches;
    - `collected`: results whose parts for all micro-batches are joined in the end.
    """

    name: str
    stage: int
    ops: Sequence[Operation]
    passed: list[SSAValue] = field(default_factory=list[SSAValue])
    accumulated: list[SSAValue] = field(default_factory=list[SSAValue])
    collected: list[SSAValue] = field(default_factory=list[SSAValue])

    @property
    def kept(self) -> list[SSAValue]:
        """The values that the function of the group returns for each micro-batch."""
        return list(dict.fromkeys((*self.passed, *self.collected)))

    @staticmethod
    def of(
        name: str, stage: int, ops: Sequence[Operation], kinds: Structure
    ) -> StageOps:
        """The group of these ops, with the results that something else needs."""
        group, own = StageOps(name, stage, ops), set(ops)
        for value in (r for op in ops for r in op.results):
            outside = {u.operation for u in value.uses} - own
            after = [
                op for op in outside if kinds.kinds.get(op, Kind.AFTER) is Kind.AFTER
            ]
            if len(after) < len(outside):
                group.passed.append(value)
            if after:
                partial = over_time(value).kind == "partial"
                (group.accumulated if partial else group.collected).append(value)
        return group


@dataclass(frozen=True, eq=False)
class StageFunction:
    """
    A function for a group, called by its `symbol`. It takes `inputs`, what it adds to (`added`) and, if it is
    `numbered`, the number of the micro-batch; it returns what the group keeps for each
    micro-batch, then what it accumulates.
    """

    symbol: SymbolRefAttr
    inputs: tuple[SSAValue, ...]
    added: tuple[SSAValue, ...]
    numbered: bool


def needed_inside(value: SSAValue, structure: Structure) -> Sequence[SSAValue] | None:
    """
    Of a value that a function computes for itself, though not of its group, what it needs
    for that; None of one that it is given.
    """
    owner = value.owner
    if not isinstance(owner, Operation):
        return None
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
    """Builds the function of a group on its stage's mesh."""

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

    def build(self) -> StageFunction:
        """Makes the function, one more of those that the fold makes."""
        name = self.group.name if not self.added else f"{self.group.name}_accumulate"
        name = self.fold.free_name(name)
        try:
            function = self._build(name)
        except NeedsNumber:
            self.numbered = True
            function = self._build(name)
        self.fold.add(function)
        return StageFunction(
            SymbolRefAttr(name), tuple(self.inputs), self.added, self.numbered
        )

    def _build(self, name: str) -> FuncOp:
        self.block = Block()
        self.values: dict[SSAValue, SSAValue] = {}
        self.inputs: list[SSAValue] = []
        own = set(self.group.ops)
        # Arguments first: what the ops need from outside, in the order of their use.
        for op in self.group.ops:
            for value in op.operands:
                self._find_inputs(value, own)
        sums: dict[SSAValue, SSAValue] = {}
        for value in self.added:
            sums[value] = self._argument(value, "sum")
        self.number = (
            self.fold.number_argument(self.block, self.mesh) if self.numbered else None
        )
        for op in self.group.ops:
            self._op(op)
            for result in op.results:
                if result in sums:
                    sums[result] = self._sum(result, sums[result])
        results = [self.values[v] for v in self.group.kept]
        results += [sums.get(v, self.values[v]) for v in self.group.accumulated]
        self.block.add_op(ReturnOp(*results))
        return FuncOp(
            name,
            FunctionType.from_lists(
                [a.type for a in self.block.args], [v.type for v in results]
            ),
            Region(self.block),
            StringAttr("private"),
        )

    def _argument(self, value: SSAValue, hint: str | None = None) -> SSAValue:
        new = self.block.insert_arg(
            self.fold.type(value.type, self.mesh), len(self.block.args)
        )
        new.name_hint = hint or value.name_hint
        return new

    def _find_inputs(self, value: SSAValue, own: set[Operation]) -> None:
        owner = value.owner
        if (isinstance(owner, Operation) and owner in own) or value in self.values:
            return
        needed = needed_inside(value, self.structure)
        if needed is not None:
            for operand in needed:
                self._find_inputs(operand, own)
            return
        self.values[value] = self._argument(value)
        self.inputs.append(value)

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
        operands = [self._value(v) for v in op.operands]
        made = self.fold.op(op, operands, self.mesh, self.number)
        self.block.add_ops(made)
        for old, new in zip(op.results, made[-1].results, strict=True):
            new.name_hint = old.name_hint
            self.values[old] = new

    def _repeat(self, op: Operation) -> None:
        """Repeats a value along one micro-batch, on each device what it needs of it."""
        expand = op.operands[0].owner
        assert isinstance(expand, Operation)
        source = self._value(expand.operands[0])
        target = self.fold.type(op.results[0].type, self.mesh)
        made = repeated_ops(source, target, self.fold.space(self.mesh))
        self.block.add_ops(made)
        self.values[op.results[0]] = made[-1].results[0]

    def _sum(self, value: SSAValue, so_far: SSAValue) -> SSAValue:
        """What is there and this micro-batch's part."""
        new = self.values[value]
        name = ACCUMULATE[over_time(value).monoid]
        add = operator(name).build_op([so_far, new], [new.type])
        owner = value.owner
        if isinstance(owner, Operation) and SCOPE in owner.attributes:
            add.attributes[SCOPE] = owner.attributes[SCOPE]
        self.block.add_op(add)
        add.results[0].name_hint = new.name_hint
        return add.results[0]
