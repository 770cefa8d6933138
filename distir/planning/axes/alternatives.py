"""The alternatives that are weighed on one mesh axis, for ops and for values."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from distir.planning.graph.strategies import AxisStrategy
from distir.sharding.placement import Placement

Source = Literal["activation", "constant", "parameter"]
"""
What a value is computed from: an activation depends on inputs, a constant on constants
only, a parameter on parameters and constants only. Every device can compute the latter two
by itself.
"""


class Take(Enum):
    """The ways in which an op may obtain an operand in the placement that it wants."""

    AS_IS = 0
    """The value must be available in that placement already."""
    MOVED = 1
    """
    Communication may bring the value to that placement, but a whole value may not be cut.
    """
    CUT = 2
    """A whole value may be cut, and a partial one reduced and scattered."""
    GATHERED = 3
    """Like `CUT`, but the value must not be available in parts in any placement."""


class Cut(NamedTuple):
    """
    A part of a value, with the position (in program order) of the use that cuts it out.
    """

    placement: Placement
    use: int


Available = tuple[Placement, ...]
"""
The placements in which a value is available; the first is the one in which it is computed.
"""


class OpAlternative(NamedTuple):
    """
    One alternative of an op on a mesh axis: its strategy, for each operand how it may be
    obtained in the strategy's placement, and the op's `cost`.
    """

    strategy: AxisStrategy
    takes: tuple[Take, ...]
    cost: float

    def available(self, result: int) -> Available:
        """Returns the placement of a result as a tuple of one."""
        return self.strategy.results[result : result + 1]


class ValueAlternative(NamedTuple):
    """
    One alternative of a value: the placements in which it is kept for its uses. If `cut` is
    given, that use cuts a part out of the value (or reduces and scatters it), and later
    uses can take that part too.
    """

    placements: Available
    cut: Cut | None = None

    def available(self, result: int) -> Available:
        """Returns the placements in which the value is available."""
        return self.placements

    @property
    def placement(self) -> Placement:
        """The placement in which the value is computed."""
        return self.placements[0]


Alternative = OpAlternative | ValueAlternative
