"""What is weighed on one mesh axis: alternatives of ops, and of values."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from distir.planning.strategies import AxisStrategy
from distir.sharding.placement import Placement

Source = Literal["activation", "constant", "parameter"]
"""
What a value is computed from: inputs among other things, constants only, or parameters
and constants only. Every device can compute the latter two for itself.
"""


class Take(Enum):
    """How an op may come to an operand in the placement that it wants."""

    AS_IS = 0
    """The value must be there like that."""
    MOVED = 1
    """Communication may bring it there, but a whole value is not cut."""
    CUT = 2
    """A whole value may be cut, a partial one reduced and scattered."""
    GATHERED = 3
    """As `CUT`, and the value must not be there in parts in any way."""


class Cut(NamedTuple):
    """A part of a value, and which of its uses (in program order) makes it."""

    placement: Placement
    use: int


Ways = tuple[Placement, ...]
"""The placements in which a value is there; the first is the one it is made in."""


class OpAlternative(NamedTuple):
    """
    What an axis may do to an op: a strategy, and per operand, how it may come to be placed
    so; `cost` is the op's.
    """

    strategy: AxisStrategy
    takes: tuple[Take, ...]
    cost: float

    def ways(self, result: int) -> Ways:
        """The placement in which a result is there, alone in a tuple."""
        return self.strategy.results[result : result + 1]


class ValueAlternative(NamedTuple):
    """
    The placements in which a value is kept for those that use it; `cut`: one of its
    uses cuts a part out of it, or reduces and scatters it, and those behind have that
    part too.
    """

    there: Ways
    cut: Cut | None = None

    def ways(self, result: int) -> Ways:
        """The placements in which the value is there."""
        return self.there

    @property
    def placement(self) -> Placement:
        """The placement in which the value is made."""
        return self.there[0]


Alternative = OpAlternative | ValueAlternative
