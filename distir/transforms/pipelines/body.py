"""The body of a function while it is being built."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import FunctionType, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

Make = Callable[[Sequence[SSAValue]], Sequence[Operation]]
"""Makes ops on operands; the last op has the results."""


class BlockBody:
    """A body as IR."""

    def __init__(self) -> None:
        self.block = Block()

    def arguments(self, types: Sequence[Attribute]) -> Sequence[SSAValue]:
        """See `Entry`."""
        self.block = Block(arg_types=types)
        return self.block.args

    def type_of(self, value: SSAValue) -> Attribute:
        """See `Entry`."""
        return value.type

    def name(self, value: SSAValue, hint: str | None) -> None:
        """See `Entry`."""
        if value.name_hint is None:
            value.name_hint = hint

    def op(self, make: Make, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
        """See `Entry`."""
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
