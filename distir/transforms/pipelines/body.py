"""The body of a function while it is being built, in IR or as something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from xdsl.dialects.builtin import FunctionType, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

V = TypeVar("V")
"""What stands for a value of the function that is built."""

Make = Callable[[Sequence[SSAValue]], Sequence[Operation]]
"""Makes ops on operands; the last op has the results."""


class EmittedBody(Protocol[V]):
    """
    What receives the ops of a function, in order: `BlockBody` keeps them as IR; the search
    of a grid turns them into steps of the simulator.
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

    def op(self, like: object, make: Make, operands: Sequence[V]) -> Sequence[V]:
        """
        Adds the ops that `make` makes on operands; returns the results of the last one.
        `like` is a key: for equal keys and operands of the same types, `make` must make the
        same ops.
        """
        ...


class BlockBody:
    """A body as IR."""

    def __init__(self) -> None:
        self.block = Block()

    def arguments(self, types: Sequence[Attribute]) -> Sequence[SSAValue]:
        """See `EmittedBody`."""
        self.block = Block(arg_types=types)
        return self.block.args

    def type_of(self, value: SSAValue) -> Attribute:
        """See `EmittedBody`."""
        return value.type

    def name(self, value: SSAValue, hint: str | None) -> None:
        """See `EmittedBody`."""
        if value.name_hint is None:
            value.name_hint = hint

    def op(
        self, like: object, make: Make, operands: Sequence[SSAValue]
    ) -> Sequence[SSAValue]:
        """See `EmittedBody`."""
        ops = make(operands)
        self.block.add_ops(ops)
        return ops[-1].results

    def function(
        self,
        name: str,
        results: Sequence[SSAValue],
        visibility: StringAttr | None = None,
    ) -> FuncOp:
        """Returns the function of that name that returns these values."""
        self.block.add_op(ReturnOp(*results))
        types = [a.type for a in self.block.args], [v.type for v in results]
        body = Region(self.block)
        return FuncOp(name, FunctionType.from_lists(*types), body, visibility)
