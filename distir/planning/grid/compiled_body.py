"""Functions compiled for the simulator while they are built, without ever being IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

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


@dataclass(frozen=True)
class _Prototype:
    """
    Steps that can be taken once more: on which operands they were taken, of which types
    (`given`), their first value and the types of all, which steps may go if nothing uses
    them, and the results.
    """

    steps: Sequence[CompiledOp]
    removable: Sequence[bool]
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

    def lowered(self, op: Operation) -> list[Operation]:
        """What the simulator takes for an op of the pipeline."""
        self._kept.append(op)
        if isinstance(op, ReshardOp):
            parts = self._lowering.ops(op)
            self._kept += parts
            return parts
        if isinstance(op, CallOp):
            self._lower_functions()
        return [op]

    def step(self, op: Operation, operands: tuple[int, ...], first: int) -> CompiledOp:
        """A step for an op on these operands whose first result is this."""
        self._kept.append(op)
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
    """A `Body` whose ops become steps; a value is its slot."""

    def __init__(self, name: str, compilation: Compilation):
        self.compilation = compilation
        self.types: list[Attribute] = []
        self.steps = FunctionBuilder(name, 0)
        self._name = name
        self._removable: list[bool] = []
        self._values: dict[int, SSAValue] = {}
        self._block = Block()

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
            known = self._taken(make, operands)
            self.compilation.prototypes[key] = known
            return known.results
        return self._taken_again(known, operands)

    def _taken(self, make: Make, operands: Sequence[int]) -> _Prototype:
        """Takes new steps."""
        steps: list[CompiledOp] = []
        removable: list[bool] = []
        count, slots = len(self.types), self.steps
        results = operands
        for op in make([self.value(slot) for slot in operands]):
            parts = self.compilation.lowered(op)
            may_go = is_removable(op)
            for part in parts:
                steps.append(self.compilation.compiler.add(part, slots))
                removable.append(may_go)
                self.types += [r.type for r in part.results]
            if isinstance(op, ReshardOp):
                last = parts[-1].results[0] if parts else op.source
                (slot,) = slots.slots([last])
                slots.bind(op.results, slot)
            results = slots.slots(op.results)
        self._removable += removable
        types = self.types[count:]
        given = [self.types[slot] for slot in operands]
        return _Prototype(steps, removable, operands, given, count, types, results)

    def _taken_again(self, known: _Prototype, operands: Sequence[int]) -> Sequence[int]:
        """Takes known steps on other operands."""
        by = len(self.types) - known.first
        slots = dict(zip(known.operands, operands, strict=True))
        for step in known.steps:
            self.steps.define(len(step.defined))
            self.steps.add(step.moved(slots, by))
        self.types += known.types
        self._removable += known.removable
        return [slots.get(slot, slot + by) for slot in known.results]

    def value(self, slot: int) -> SSAValue:
        """What stands for a slot as an operand of an op."""
        if slot not in self._values:
            value = BlockArgument(self.types[slot], self._block, slot)
            self._values[slot] = value
            self.steps.bind([value], slot)
        return self._values[slot]

    def finish(self, results: Sequence[int], mesh: int) -> CompiledFunction:
        """The function on a mesh that returns these."""
        self.steps.drop_dead(results, self._removable)
        compiled = self.steps.finish(results, {})
        compiled.mesh = mesh
        return compiled
