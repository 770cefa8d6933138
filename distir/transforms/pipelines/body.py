"""The body of a function while it is being built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from xdsl.dialects.builtin import FunctionType, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

V = TypeVar("V")
"""What stands for a value of the function that is built."""

Make = Callable[[Sequence[SSAValue]], Sequence[Operation]]
"""Makes ops on operands, the last of which gives the results."""


class Body(Protocol[V]):
    """
    What takes the ops of a function, in their order: `BlockBody` keeps them, the search of a
    grid makes them steps of the simulator.
    """

    def arguments(self, types: Sequence[Attribute]) -> Sequence[V]:
        """The arguments of the function; comes first."""
        ...

    def type_of(self, value: V) -> Attribute:
        """The type of a value."""
        ...

    def name(self, value: V, hint: str | None) -> None:
        """Calls a value that has no name so."""
        ...

    def op(self, like: object, make: Make, operands: Sequence[V]) -> Sequence[V]:
        """
        Adds the ops that `make` makes on operands; gives the results of the last. What is
        made on operands of the same types is the same wherever `like` is equal.
        """
        ...


class BlockBody:
    """A body as IR."""

    def __init__(self) -> None:
        self.block = Block()

    def arguments(self, types: Sequence[Attribute]) -> Sequence[SSAValue]:
        """See `Body`."""
        self.block = Block(arg_types=types)
        return self.block.args

    def type_of(self, value: SSAValue) -> Attribute:
        """See `Body`."""
        return value.type

    def name(self, value: SSAValue, hint: str | None) -> None:
        """See `Body`."""
        if value.name_hint is None:
            value.name_hint = hint

    def op(
        self, like: object, make: Make, operands: Sequence[SSAValue]
    ) -> Sequence[SSAValue]:
        """See `Body`."""
        ops = make(operands)
        self.block.add_ops(ops)
        return ops[-1].results

    def function(
        self,
        name: str,
        results: Sequence[SSAValue],
        visibility: StringAttr | None = None,
    ) -> FuncOp:
        """The function of that name that returns these values."""
        self.block.add_op(ReturnOp(*results))
        types = [a.type for a in self.block.args], [v.type for v in results]
        body = Region(self.block)
        return FuncOp(name, FunctionType.from_lists(*types), body, visibility)
