"""The entry function of a pipeline while it is being built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from xdsl.dialects.builtin import FunctionType, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from distir.dialects.dist import ASYNCHRONOUS, SendOp
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.functions import (
    StageFunction,
    StageFunctionBuilder,
    StageOps,
)
from distir.transforms.pipelines.structure import Structure

V = TypeVar("V")
"""What stands for a value of the program that is built."""


class Entry(Protocol[V]):
    """
    What an `Emitter` gives the steps of the entry function to, in their order: `EntryFunction`
    makes a function of them, the search of a grid simulates them without one.
    """

    def arguments(self, types: Sequence[Attribute]) -> Sequence[V]:
        """The arguments of the function; comes first."""
        ...

    def type_of(self, value: V) -> Attribute:
        """The type of a value."""
        ...

    def name(self, value: V, old: SSAValue) -> None:
        """Calls a value as it was called in the program before."""
        ...

    def op(
        self, make: Callable[[Sequence[SSAValue]], Operation], operands: Sequence[V]
    ) -> Sequence[V]:
        """Adds the op that `make` makes on operands; gives its results."""
        ...

    def send(self, value: V, type_: Attribute, *, asynchronous: bool) -> V:
        """Sends a value to another mesh, where it has this type."""
        ...

    def stage_function(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        """A new function for a group on its stage's mesh, which adds to these values."""
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
        Calls a function; gives its results, which have these types and are `returned` in the
        program before. `common` has for each input of the function the operand that is the
        same for all micro-batches, or None for one of `own`, which then come in their order;
        more of these stand behind.
        """
        ...


class EntryFunction:
    """The entry function as IR."""

    def __init__(self, structure: Structure, fold: Fold):
        self._structure = structure
        self._fold = fold
        self._block = Block()

    def arguments(self, types: Sequence[Attribute]) -> Sequence[SSAValue]:
        """See `Entry`."""
        self._block = Block(arg_types=types)
        return self._block.args

    def type_of(self, value: SSAValue) -> Attribute:
        """See `Entry`."""
        return value.type

    def name(self, value: SSAValue, old: SSAValue) -> None:
        """See `Entry`."""
        if value.name_hint is None:
            value.name_hint = old.name_hint

    def op(
        self,
        make: Callable[[Sequence[SSAValue]], Operation],
        operands: Sequence[SSAValue],
    ) -> Sequence[SSAValue]:
        """See `Entry`."""
        op = make(operands)
        self._block.add_op(op)
        return op.results

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
        self._block.add_op(send)
        return send.result

    def stage_function(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        """See `Entry`."""
        builder = StageFunctionBuilder(self._structure, self._fold, group, mesh, added)
        return builder.build()

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
        # As `CallOp(...)`, which takes its time with hundreds of operands.
        call = CallOp.create(
            operands=[*operands, *left],
            result_types=types,
            properties={"callee": function.symbol},
        )
        self._block.add_op(call)
        for new, old in zip(call.results, returned, strict=True):
            new.name_hint = old.name_hint
        return call.results

    def finish(self, results: Sequence[SSAValue]) -> FuncOp:
        """The function, which returns these values."""
        old, block = self._structure.function, self._block
        block.add_op(ReturnOp(*results))
        function = FuncOp(
            old.sym_name.data,
            FunctionType.from_lists(
                [a.type for a in block.args], [v.type for v in results]
            ),
            Region(block),
            old.sym_visibility,
        )
        function.arg_attrs, function.res_attrs = old.arg_attrs, old.res_attrs
        function.attributes.update(old.attributes)
        return function
