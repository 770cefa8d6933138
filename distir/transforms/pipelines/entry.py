"""The entry function of a pipeline while it is being built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, SSAValue

from distir.dialects.dist import SendOp
from distir.dialects.dist_attributes import ASYNCHRONOUS
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.functions import (
    BlockBody,
    Make,
    StageFunction,
    StageFunctionBuilder,
    StageOps,
)
from distir.transforms.pipelines.structure import Structure

V = TypeVar("V")
"""What stands for a value of the entry function."""


class Entry(Protocol[V]):
    """
    Receives the steps of the entry function from an `Emitter`, in order. `EntryFunction`
    makes IR of them; the search of a grid makes steps of the simulator.
    """

    def arguments(self, types: Sequence[Attribute]) -> Sequence[V]:
        """Adds the arguments of the function and returns them; must be called first."""
        ...

    def type_of(self, value: V) -> Attribute:
        """Returns the type of a value."""
        ...

    def name(self, value: V, hint: str | None) -> None:
        """Gives a value without a name this name."""
        ...

    def op(self, make: Make, operands: Sequence[V]) -> Sequence[V]:
        """
        Adds the ops that `make` makes on operands; returns the results of the last one.
        """
        ...

    def send(self, value: V, type_: Attribute, *, asynchronous: bool) -> V:
        """Sends a value to another mesh, where it has this type, and returns it there."""
        ...

    def stage_function(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        """
        Returns a new function for a group on its stage's mesh, which accumulates into these
        values.
        """
        ...

    def call(
        self,
        function: StageFunction,
        common: Sequence[V | None],
        own: Sequence[V],
        returned: Sequence[SSAValue],
        types: Sequence[Attribute],
    ) -> Sequence[V]:
        """
        Calls a function and returns its results, which have these types and stand for
        `returned` in the original program.

        For each input of the function, `common` has the operand if it is the same for all
        micro-batches, else None; the values of `own` fill the places of None in their
        order, and any further ones follow behind.
        """
        ...


class EntryFunction(BlockBody):
    """The entry function in IR."""

    def __init__(self, structure: Structure, fold: Fold):
        super().__init__()
        self._structure = structure
        self._fold = fold

    def send(
        self, value: SSAValue, type_: Attribute, *, asynchronous: bool
    ) -> SSAValue:
        """See `Entry`."""
        send = SendOp.create(
            operands=[value],
            result_types=[type_],
            attributes={ASYNCHRONOUS: UnitAttr()} if asynchronous else {},
        )
        send.result.name_hint = value.name_hint
        self.block.add_op(send)
        return send.result

    def stage_function(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        """See `Entry`."""
        structure, fold = self._structure, self._fold
        return stage_function(structure, fold, group, mesh, added)[0]

    def call(
        self,
        function: StageFunction,
        common: Sequence[SSAValue | None],
        own: Sequence[SSAValue],
        returned: Sequence[SSAValue],
        types: Sequence[Attribute],
    ) -> Sequence[SSAValue]:
        """See `Entry`."""
        left = iter(own)
        operands = [next(left) if same is None else same for same in common]
        # Like `CallOp(...)`, which is slow with hundreds of operands.
        call = CallOp.create(
            operands=[*operands, *left],
            result_types=types,
            properties={"callee": function.symbol},
        )
        self.block.add_op(call)
        for new, old in zip(call.results, returned, strict=True):
            new.name_hint = old.name_hint
        return call.results

    def finish(self, results: Sequence[SSAValue]) -> FuncOp:
        """Returns the finished function, with these results."""
        old = self._structure.function
        function = self.function(old.sym_name.data, results, old.sym_visibility)
        function.arg_attrs, function.res_attrs = old.arg_attrs, old.res_attrs
        function.attributes.update(old.attributes)
        return function


def stage_function(
    structure: Structure,
    fold: Fold,
    group: StageOps,
    mesh: str,
    added: tuple[SSAValue, ...],
) -> tuple[StageFunction, FuncOp]:
    """
    Adds the function of a group on its stage's mesh, which accumulates into the values
    `added`, to those that `fold` has made; returns its interface and the function.
    """
    name = group.name if not added else f"{group.name}_accumulate"
    builder = StageFunctionBuilder(structure, fold, group, mesh, added)
    made = builder.build(fold.free_name(name))
    fold.add(made)
    return builder.interface(made), made
