"""
Content ids of ops and functions. In any program, ops with equal ids do the same work in
one micro-batch, and functions with equal ids do too. Code that was compiled for one
program can therefore serve other programs.

For example, a model with twice the batch and twice the number of micro-batches has the
same stages. Inside one program, while layouts are chosen, `distir.sharding.signatures`
gives ids to ops instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count

from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue

from distir.dialects.constants import keeps_value
from distir.dialects.dist_attributes import SCOPE
from distir.program import batch_size
from distir.transforms.pipelines.fold import Fold, number_type
from distir.transforms.pipelines.structure import Structure


class Numbers:
    """
    Gives ids to keys. Equal keys always get the same id. `first` maps a number of
    samples in a micro-batch to the first `Contents` with this number that was shared.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self._count = count()
        self.first: dict[float, Contents] = {}

    def of(self, *key: Hashable) -> int:
        """Returns the id of the key `key`."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = next(self._count)
        return found

    def find(self, *key: Hashable) -> int | None:
        """Returns the id of the key `key`, or None if the key has no id yet."""
        return self._known.get(key)

    def new(self) -> int:
        """Returns an id that no key has yet."""
        return next(self._count)

    def assign(self, number: int, *key: Hashable) -> None:
        """Gives the id `number` to the key `key`, unless the key already has one."""
        self._known.setdefault(key, number)


class Contents:
    """
    The content ids of a program's ops and functions. Ops with equal ids do the same
    work in one micro-batch.

    - `structure`: describes the program, on the mesh of its first stage;
    - `fold`: the folded program, for one number of micro-batches;
    - `before`: the contents of the same program for another number of micro-batches, or
      None.

    Code can only be shared between programs that have equally many samples in a
    micro-batch. Reading the contents of a program takes long. While no other program
    with this number of samples is known, ids are therefore given without reading;
    `settle` reads the contents later.
    """

    def __init__(
        self,
        structure: Structure,
        fold: Fold,
        numbers: Numbers,
        before: Contents | None = None,
    ):
        self._structure = structure
        self._fold = fold
        self._numbers = numbers
        self._mesh = fold.stages[0].name
        self._known: dict[int, int] = {}
        self._functions: dict[str, int] = {}
        # By the ids of attributes, which are kept alive here.
        self._attributes: dict[int, tuple[Attribute, int]] = {}
        self._plain: dict[int, tuple[int, ...]] = {}
        if before is not None:
            self._attributes, self._plain = before._attributes, before._plain
        self._samples = (batch_size(structure.function) or 0) / structure.micro_batches
        first = numbers.first.get(self._samples)
        self._is_alone = first is None
        self._unseen: dict[int, Operation] = {}
        """The ops whose ids were given without a look at them, by signature."""
        if first is not None:
            first.settle()

    def share(self) -> None:
        """
        Makes the ids available to programs that are compiled later. All functions of
        this program must have been compiled, so that their contents can be found
        without an error.
        """
        self._numbers.first.setdefault(self._samples, self)

    def settle(self) -> None:
        """
        Makes the ids given so far known to other programs, so that equal ops and
        functions of those programs get the same ids.
        """
        if not self._is_alone:
            return
        self._is_alone = False
        for name, number in [*self._functions.items()]:
            self._numbers.assign(number, *self._unused(self._content(name)))
        for signature, op in self._unseen.items():
            self._numbers.assign(self._known[signature], *self._key(op, signature))

    def of(self, op: Operation) -> int:
        """
        Returns the content id of `op`, which is equal for ops that do the same work in
        one micro-batch. It covers the constants among its operands.
        """
        signature = self._structure.signature(op)
        found = self._known.get(signature)
        if found is None:
            if self._is_alone:
                self._unseen[signature] = op
                found = self._numbers.new()
            else:
                found = self._numbers.of(*self._key(op, signature))
            self._known[signature] = found
        return found

    def function(self, name: str) -> int:
        """
        Returns the content id of function `name`, which is equal for functions of
        different programs that do the same work. Two functions of one program never
        have the same id.
        """
        if name not in self._functions:
            self._functions[name] = (
                self._numbers.new()
                if self._is_alone
                else self._numbers.of(*self._unused(self._content(name)))
            )
        return self._functions[name]

    def _unused(self, content: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
        """
        Returns the key of a function with the content `content` whose id no other
        function of this program has.
        """
        known, place = self._functions.values(), 0
        while self._numbers.find("function", place, *content) in known:
            place += 1
        return "function", place, *content

    def _content(self, name: str) -> tuple[Hashable, ...]:
        block = self._fold.functions[name].body.block
        slots: dict[SSAValue, int] = {v: i for i, v in enumerate(block.args)}
        content: list[Hashable] = [self._type(arg) for arg in block.args]
        for op in block.ops:
            if not isinstance(op, ReturnOp):
                content.append(self.of(op))
            content.append(tuple([slots[v] for v in op.operands]))
            slots.update(zip(op.results, count(len(slots))))
        return tuple(content)

    def _key(self, op: Operation, signature: int) -> tuple[Hashable, ...]:
        plain = self._plain.get(signature)
        if plain is None:
            plain = self._plain[signature] = self._of_attributes(op)
        if isinstance(op, CallOp):
            callee = self.function(op.callee.string_value())
            return "call", callee, plain, *self._types(op)
        constants = [self._constant(v) for v in op.operands]
        if self._fold.stays(op):
            return "op", plain, *self._types(op), *constants
        owners = [v.owner for v in op.operands if isinstance(v.owner, Operation)]
        if not self._fold.has_local_form(op) or any(map(keeps_value, owners)):
            # What it becomes may depend on all of the batch.
            values = (*op.operands, *op.results)
            types = [self._attribute(v.type) for v in values]
            parts = self._structure.micro_batches
            return "split", parts, plain, *types, *self._types(op), *constants
        return "local form", *self._local_form(op)

    def _local_form(self, op: Operation) -> list[Hashable]:
        """
        Describes the form of `op` on one device, if its attributes or operands contain
        global sizes or positions.
        """
        mesh, slots = self._mesh, dict[SSAValue, int]()
        given: list[SSAValue] = []
        content: list[Hashable] = [len(op.operands)]
        for value in op.operands:
            constant, owner = self._constant(value), value.owner
            content.append((self._type(value), constant))
            if constant is None or not isinstance(owner, Operation):
                type_ = self._fold.type(value.type, mesh)
                (new,) = Block(arg_types=[type_]).args
            else:
                (new,) = self._fold.op(owner, [], mesh, None)[-1].results
            slots[new] = len(slots)
            given.append(new)
        (number,) = Block(arg_types=[number_type(mesh)]).args
        slots[number] = -1
        for made in self._fold.op(op, given, mesh, number):
            content.append(self._of_attributes(made))
            content.append(tuple([slots[v] for v in made.operands]))
            content += [self._attribute(r.type) for r in made.results]
            slots.update(zip(made.results, count(len(slots))))
        return content

    def _types(self, op: Operation) -> list[int]:
        return [len(op.operands), *map(self._type, (*op.operands, *op.results))]

    def _type(self, value: SSAValue) -> int:
        """
        Returns the id of a value's type, with the size of the value in one micro-batch.
        """
        return self._attribute(self._fold.type(value.type, self._mesh))

    def _constant(self, value: SSAValue) -> int | None:
        """
        Returns the content id of the constant that computes a value, if a sharding rule
        may read that constant. Returns None for other values. Constants with equal ids
        are equal.
        """
        if not isinstance(value, OpResult):
            return None
        is_seen = value.op.name == "onnx.Constant" or keeps_value(value.op)
        return self.of(value.op) if is_seen else None

    def _of_attributes(self, op: Operation) -> tuple[int, ...]:
        """
        Returns the ids of the op's name and attributes. Types are left out, and so is
        the callee of a call.
        """
        items: Sequence[tuple[str, Attribute]] = (
            *(() if isinstance(op, CallOp) else op.properties.items()),
            *((n, a) for n, a in op.attributes.items() if n != SCOPE),
        )
        of = self._numbers.of
        return of(type(op)), *[of(name, self._attribute(a)) for name, a in items]

    def _attribute(self, attribute: Attribute) -> int:
        found = self._attributes.get(id(attribute))
        if found is None:
            number = self._numbers.of("attribute", attribute)
            found = self._attributes[id(attribute)] = (attribute, number)
        return found[1]
