"""
Functions that are compiled for the simulator while they are built, without ever becoming
IR.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from distir.dialects.constants import keeps_value
from distir.dialects.dist import ReshardOp
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    CompiledFunction,
    CompiledStep,
)
from distir.interpreters.simulator.engine.compiler import (
    CompiledFunctionBuilder,
    Compiler,
)
from distir.interpreters.simulator.engine.device_map import UniformDeviceMap
from distir.interpreters.simulator.engine.summaries import Summaries
from distir.planning.distribution.buckets import MessageSizes
from distir.planning.grid.compiled_messages import Messages
from distir.planning.grid.contents import Contents, Numbers
from distir.program import is_removable
from distir.sharding.mesh import Mesh
from distir.transforms.bucketing import CollectiveBucketer
from distir.transforms.pipelines.body import Make
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.structure import Structure
from distir.transforms.resharding import ReshardLowering


@dataclass
class Part:
    """
    An op in a prototype: its operands, the values that it defines, whether it may be
    removed when these are unused, and its steps once they are asked for. Values between the
    steps of one op are numbered -1, -2, ...
    """

    op: Operation
    operands: tuple[int, ...]
    defined: range
    removable: bool
    steps: Sequence[CompiledStep] | None = None


@dataclass(frozen=True)
class _Prototype:
    """
    Ops that can be instantiated again: their `parts`, the `operands` on which they were
    built with their types (`given`), the first value that they define, the types of all
    values defined, and the results.
    """

    parts: Sequence[Part]
    operands: Sequence[int]
    given: Sequence[Attribute]
    first: int
    types: Sequence[Attribute]
    results: Sequence[int]


@dataclass(frozen=True)
class SharedFunction:
    """
    A function of stages that do the same: the mesh axes along which it communicates, and
    whether it takes the number of the micro-batch.
    """

    compiled: CompiledFunction
    axes: frozenset[tuple[str, ...]]
    numbered: bool


class SharedStages:
    """
    What all pipelines on the same meshes share, whichever programs they come from:
    functions that do the same (`Contents`) are compiled and summarised once. With
    `buckets`, collectives of neighbouring tensors are one message. All devices of a mesh
    must do the same; otherwise it raises NotUniform.
    """

    def __init__(
        self, meshes: Sequence[Mesh], hardware: Hardware, buckets: bool = False
    ):
        known = {mesh.name: mesh for mesh in meshes}
        self.device_map = UniformDeviceMap(known, list(known), hardware)
        self.compiler = Compiler({}, self.device_map)
        self.lowering = ReshardLowering(known)
        self.messages: Messages | None = None
        if buckets:
            sizes = MessageSizes(hardware, known)
            bucketer = CollectiveBucketer(known, sizes.limit)
            self.messages = Messages(bucketer, self.device_map)
        self.summaries = Summaries()
        self.numbers = Numbers()
        self.functions: dict[Hashable, SharedFunction] = {}
        self.callees: dict[tuple[int, str], CompiledFunction] = {}
        """Functions that stages call, by their numbers and meshes."""
        self.callee_numbers: dict[CompiledFunction, int] = {}
        """The numbers (`Contents`) of these functions."""


class Compilation:
    """
    What the functions of one pipeline share while they are compiled. `before` is the
    compilation of the same program for another number of micro-batches; what does not
    depend on that number is taken from it.
    """

    def __init__(
        self,
        structure: Structure,
        fold: Fold,
        shared: SharedStages,
        before: Compilation | None = None,
    ):
        self.fold = fold
        self.shared = shared
        self.device_map = shared.device_map
        self.compiler = shared.compiler.of(fold.made)
        known = before.contents if before else None
        self.contents = Contents(structure, fold, shared.numbers, known)
        self._lowered: set[str] = set()
        # Values and types are identified by their ids, so their owners must stay alive.
        self._kept: list[object] = [fold]
        self.prototypes: dict[object, _Prototype] = before.prototypes if before else {}

    def steps_of(self, part: Part) -> Sequence[CompiledStep]:
        """Returns the steps of a part. Raises DistIRError."""
        if part.steps is None:
            part.steps = self._compiled(part)
        return part.steps

    def _compiled(self, part: Part) -> list[CompiledStep]:
        op, operands = part.op, part.operands
        if not isinstance(op, ReshardOp):
            exchange = self.compiler.exchange(op, part.defined.start)
            own = self.step(op, operands, part.defined.start)
            return [own] if exchange is None else [exchange, own]
        steps: list[CompiledStep] = []
        ops = self.shared.lowering.ops(op)
        for i, each in enumerate(ops, 1):
            first = part.defined.start if i == len(ops) else -i
            steps.append(self.step(each, operands[: len(each.operands)], first))
            operands = (first,)
        return steps

    def step(
        self, op: Operation, operands: tuple[int, ...], first: int
    ) -> CompiledStep:
        """
        Returns a step for an op on these operands; its first result has the number `first`.
        """
        self._kept.append(op)
        if isinstance(op, CallOp):
            self._prepare(op.callee.string_value())
        return self.compiler.step(op, operands, first)

    def _prepare(self, name: str) -> None:
        """Compiles a folded function and those that it calls, if that has not been done."""
        if name in self._lowered:
            return
        self._lowered.add(name)
        number, mesh = self._number(name), self.fold.mesh_of(name)
        function, shared = self.fold.made[name], self.shared
        known = shared.callees.get((number, mesh))
        if known is not None:
            self.compiler.take(function, known)
            return
        for op in function.body.block.ops:
            if isinstance(op, CallOp):
                self._prepare(op.callee.string_value())
        shared.lowering.lower(function)
        if shared.messages is not None:
            shared.messages.bucketer.bucket(function)
        compiled = self.compiler.compile(function)
        shared.callees[number, mesh] = compiled
        shared.callee_numbers[compiled] = number

    def _number(self, name: str) -> int:
        """Returns the number (`Contents`) of a folded function."""
        return self.contents.function(self.fold.origin(name))

    def called(
        self, compiled: CompiledFunction
    ) -> Iterator[tuple[int, CompiledFunction]]:
        """
        Yields the functions that a function calls, directly or not, with their numbers
        (`Contents`).
        """
        for callee in dict.fromkeys(
            [s.callee for s in compiled.steps if isinstance(s, CallStep)]
        ):
            yield self.shared.callee_numbers[callee], callee
            yield from self.called(callee)


class CompiledBody:
    """
    A `Body` whose ops become steps of the simulator once it is known which of them are
    used.
    """

    def __init__(self, name: str, compilation: Compilation):
        self.compilation = compilation
        self.types: list[Attribute] = []
        """The types of the values, which are identified by their slots."""
        self.steps = CompiledFunctionBuilder(name, 0)
        self._name = name
        self._parts: list[tuple[Part, Mapping[int, int], int]] = []
        # Results of ops that do nothing: the same as other values.
        self._same: dict[int, int] = {}
        self.constants: dict[int, Operation] = {}
        """
        Ops that make constants, or keep them: rules of ops on these may look at the value.
        """

    def arguments(self, types: Sequence[Attribute]) -> Sequence[int]:
        """See `EmittedBody`."""
        self.types = [*types]
        self.steps = CompiledFunctionBuilder(self._name, len(types))
        return range(len(types))

    def type_of(self, value: int) -> Attribute:
        """See `EmittedBody`."""
        return self.types[value]

    def name(self, value: int, hint: str | None) -> None:
        """See `EmittedBody`: the names are not used."""

    def op(self, like: object, make: Make, operands: Sequence[int]) -> Sequence[int]:
        """See `EmittedBody`."""
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
        """Reserves new slots for values of these types and returns the first."""
        self.types += types
        return self.steps.define(len(types))

    def _made(self, make: Make, operands: Sequence[int]) -> _Prototype:
        """Returns the prototype of the ops that `make` builds on these operands."""
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
        Instantiates a part of a prototype: `slots` maps its outer operands, and its own
        values are shifted by `by`.
        """
        self._parts.append((part, slots, by))

    def compile(self, part: Part, slots: Mapping[int, int], by: int) -> None:
        """
        Appends the steps of a part that was instantiated with these `slots` and this shift.
        Raises DistIRError.
        """
        steps, same = self.compilation.steps_of(part), self._same
        where = {s: slots.get(s, s + by) for s in part.operands}
        if same:
            where = {s: same.get(slot, slot) for s, slot in where.items()}
        if not steps:
            operand, *_ = part.operands
            same[part.defined.start + by] = where[operand]
            return
        for step in steps[:-1]:
            if step.defined:  # not what an op communicates while it computes
                between = step.op.results[0].type
                where[step.defined.start] = self.define([between])
        for step in steps:
            self.steps.add(step.moved(where, by))

    def real(self, slots: Sequence[int]) -> list[int]:
        """Resolves slots to the slots of the values that they stand for."""
        same = self._same
        return [same.get(slot, slot) for slot in slots]

    def finish(self, results: Sequence[int], mesh: int) -> CompiledFunction:
        """
        Returns the finished function, on a mesh, with these results. Raises DistIRError.
        """
        live, kept = set(results), list[tuple[Part, Mapping[int, int], int]]()
        for part, slots, by in reversed(self._parts):
            defined = (slot + by for slot in part.defined)
            if not part.removable or not live.isdisjoint(defined):
                live.update(slots.get(s, s + by) for s in part.operands)
                kept.append((part, slots, by))
        for taken in reversed(kept):
            self.compile(*taken)
        compiled = self.finished(results, {})
        compiled.mesh = mesh
        return compiled

    def finished(
        self, results: Sequence[int], updated: Mapping[int, int]
    ) -> CompiledFunction:
        """
        Returns the result of `CompiledFunctionBuilder.finish`, after forming the buckets of
        collectives.
        """
        if self.compilation.shared.messages is not None:
            self.steps.steps[:] = self.compilation.shared.messages.join(
                self.steps.steps
            )
        return self.steps.finish(self.real(results), updated)
