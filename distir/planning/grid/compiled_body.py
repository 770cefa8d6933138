"""Functions compiled for the simulator while they are built, without ever being IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from distir.dialects.constants import keeps_value
from distir.dialects.dist import ReshardOp
from distir.interpreters.simulator.engine.compiled import (
    CompiledFunction,
    CompiledOp,
    Compiler,
    FunctionBuilder,
)
from distir.interpreters.simulator.engine.device_map import UniformDeviceMap
from distir.program import is_removable
from distir.transforms.pipelines.body import Make
from distir.transforms.pipelines.fold import Fold
from distir.transforms.resharding import ReshardLowering


@dataclass
class Part:
    """
    An op in a prototype: on which operands it is, which values it defines, whether it may go
    if nothing uses these, and its steps once they are asked for. Between the steps of one op
    there are values -1, -2, ...
    """

    op: Operation
    operands: tuple[int, ...]
    defined: range
    removable: bool
    steps: Sequence[CompiledOp] | None = None


@dataclass(frozen=True)
class _Prototype:
    """
    Ops that can be taken once more: `parts` on these `operands`, of which types (`given`),
    the first value that they define, the types of all of these, and the results.
    """

    parts: Sequence[Part]
    operands: Sequence[int]
    given: Sequence[Attribute]
    first: int
    types: Sequence[Attribute]
    results: Sequence[int]


class Compilation:
    """
    What the functions of a pipeline share that are compiled while they are built, on meshes
    all of whose devices do the same (`device_map`). With `before`, that of the same program
    for another number of micro-batches: what does not depend on that is known.
    """

    def __init__(
        self,
        fold: Fold,
        device_map: UniformDeviceMap,
        before: Compilation | None = None,
    ):
        self.fold = fold
        self.device_map = device_map
        self._lowered: set[str] = set()
        # Values and types are known by their ids, so that what holds them has to stay.
        self._kept: list[object] = [fold]
        self.prototypes: dict[object, _Prototype] = {}
        if before is None:
            self.compiler = Compiler(fold.made, device_map)
            self._lowering = ReshardLowering({m.name: m for m in fold.stages})
        else:
            self.prototypes = before.prototypes
            self.compiler = before.compiler.of(fold.made)
            self._lowering = before._lowering

    def steps_of(self, part: Part) -> Sequence[CompiledOp]:
        """The steps of a part. Raises DistIRError."""
        if part.steps is None:
            part.steps = self._compiled(part)
        return part.steps

    def _compiled(self, part: Part) -> list[CompiledOp]:
        op, operands = part.op, part.operands
        if not isinstance(op, ReshardOp):
            return [self.step(op, operands, part.defined.start)]
        steps: list[CompiledOp] = []
        ops = self._lowering.ops(op)
        for i, each in enumerate(ops, 1):
            first = part.defined.start if i == len(ops) else -i
            steps.append(self.step(each, operands, first))
            operands = (first,)
        return steps

    def step(self, op: Operation, operands: tuple[int, ...], first: int) -> CompiledOp:
        """A step for an op on these operands whose first result is this."""
        self._kept.append(op)
        if isinstance(op, CallOp):
            self._lower_functions()
        return self.compiler.step(op, operands, first)

    def _lower_functions(self) -> None:
        """Lowers the reshards of the functions that are new."""
        for name, function in self.fold.made.items():
            if name not in self._lowered:
                self._lowered.add(name)
                self._lowering.lower(function)

    def called(
        self, compiled: CompiledFunction
    ) -> Iterator[tuple[str, CompiledFunction]]:
        """What a function calls, directly or not, with the names before folding."""
        for callee in dict.fromkeys([s.callee for s in compiled.steps if s.callee]):
            yield self.fold.origin(callee.name), callee
            yield from self.called(callee)


class CompiledBody:
    """A `Body` whose ops become steps once it is known which of them are used."""

    def __init__(self, name: str, compilation: Compilation):
        self.compilation = compilation
        self.types: list[Attribute] = []
        """Of the values, which are known by their slots."""
        self.steps = FunctionBuilder(name, 0)
        self._name = name
        self._parts: list[tuple[Part, Mapping[int, int], int]] = []
        # Results of ops that do nothing: the same as other values.
        self._same: dict[int, int] = {}
        self.constants: dict[int, Operation] = {}
        """Ops that make constants, or keep them: rules of ops on these may ask for the value."""

    def arguments(self, types: Sequence[Attribute]) -> Sequence[int]:
        """See `Body`."""
        self.types = [*types]
        self.steps = FunctionBuilder(self._name, len(types))
        return range(len(types))

    def type_of(self, value: int) -> Attribute:
        """See `Body`."""
        return self.types[value]

    def name(self, value: int, hint: str | None) -> None:
        """See `Body`: nobody sees the names."""

    def op(self, like: object, make: Make, operands: Sequence[int]) -> Sequence[int]:
        """See `Body`."""
        key = (like, *[id(self.types[slot]) for slot in operands])
        if len(set(operands)) < len(operands):
            key = (*key, tuple([operands.index(slot) for slot in operands]))
        known = self.compilation.prototypes.get(key)
        if known is None:
            known = self._made(make, operands)
            self.compilation.prototypes[key] = known
        slots = dict(zip(known.operands, operands, strict=True))
        by = self.define(known.types) - known.first
        for part in known.parts:
            if part.op.name == "onnx.Constant" or keeps_value(part.op):
                self.constants[part.defined.start + by] = part.op
            self.take(part, slots, by)
        return [slots.get(slot, slot + by) for slot in known.results]

    def define(self, types: Sequence[Attribute]) -> int:
        """The first of new slots for values of these types."""
        self.types += types
        return self.steps.define(len(types))

    def _made(self, make: Make, operands: Sequence[int]) -> _Prototype:
        """New ops on operands."""
        given = [self.types[slot] for slot in operands]
        values: list[SSAValue] = [*Block(arg_types=given).args]
        for i, slot in enumerate(operands):
            constant = self.constants.get(slot)
            if constant is not None:
                values[i] = constant.clone().results[0]
        slots = dict(zip(values, operands, strict=True))
        first = len(self.types)
        parts: list[Part] = []
        types: list[Attribute] = []
        for op in make(values):
            start = first + len(types)
            defined = range(start, start + len(op.results))
            used = tuple([slots[v] for v in op.operands])
            parts.append(Part(op, used, defined, is_removable(op)))
            slots.update(zip(op.results, defined, strict=True))
            types += [r.type for r in op.results]
        results = parts[-1].defined
        return _Prototype(parts, operands, given, first, types, results)

    def take(self, part: Part, slots: Mapping[int, int], by: int) -> None:
        """
        Takes an op, on other operands as `slots` says, and on values of the prototype that
        lie so much further here.
        """
        self._parts.append((part, slots, by))

    def compile(self, part: Part, slots: Mapping[int, int], by: int) -> None:
        """Makes an op that was taken the next steps. Raises DistIRError."""
        steps, same = self.compilation.steps_of(part), self._same
        where = {s: slots.get(s, s + by) for s in part.operands}
        if same:
            where = {s: same.get(slot, slot) for s, slot in where.items()}
        if not steps:
            (operand,) = part.operands
            same[part.defined.start + by] = where[operand]
            return
        for step in steps[:-1]:
            between = step.op.results[0].type
            where[step.defined.start] = self.define([between])
        for step in steps:
            self.steps.add(step.moved(where, by))

    def real(self, slots: Sequence[int]) -> list[int]:
        """The slots of values, some of which may be the same."""
        same = self._same
        return [same.get(slot, slot) for slot in slots]

    def finish(self, results: Sequence[int], mesh: int) -> CompiledFunction:
        """The function on a mesh that returns these. Raises DistIRError."""
        live, kept = set(results), list[tuple[Part, Mapping[int, int], int]]()
        for part, slots, by in reversed(self._parts):
            defined = (slot + by for slot in part.defined)
            if not part.removable or not live.isdisjoint(defined):
                live.update(slots.get(s, s + by) for s in part.operands)
                kept.append((part, slots, by))
        for taken in reversed(kept):
            self.compile(*taken)
        compiled = self.steps.finish(self.real(results), {})
        compiled.mesh = mesh
        return compiled
