"""What was decided for ops and functions on one mesh axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from xdsl.ir import Operation

from distir.sharding.placement import Placement


@dataclass(frozen=True)
class OpChoice:
    """What the axis does to one op: placements, and the factor that it splits."""

    op: Operation
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factor: int | None = None
    run: int | None = None
    decompose: bool = False
    callee: FunctionChoice | None = None

    def on(self, op: Operation) -> OpChoice:
        """The same choice for an op like this one."""
        return self if op is self.op else replace(self, op=op)


Source = Literal["activation", "constant", "parameter"]
"""
What a value is computed from: inputs among other things, constants only, or parameters
and constants only. Every device can compute the latter two for itself.
"""

ArgumentKey = tuple[Placement, Source]
"""What an argument comes as, and what it is computed from."""


@dataclass(eq=False)
class FunctionChoice:
    """The cheapest choice for a function whose arguments and results are so placed."""

    name: str
    cost: float
    arguments: tuple[Placement, ...]
    results: tuple[Placement, ...]
    ops: list[OpChoice]
