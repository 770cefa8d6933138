"""The alternatives of ops and of values that are compared on one mesh axis."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from distir.planning.graph.strategies import AxisStrategy
from distir.sharding.placement import Placement

Source = Literal["activation", "constant", "parameter"]
"""
The kind of values that a value is computed from. A constant depends on constants only.
A parameter depends on parameters and constants only. Any other value is an activation,
which depends on inputs. Every device can compute constants and parameters by itself.
"""


class Take(Enum):
    """
    The ways in which an op may obtain an operand in the placement that the op needs.
    """

    AS_IS = 0
    """The value must already be available in that placement."""
    MOVED = 1
    """
    Communication may bring the value to that placement, but a whole value may not be
    cut into parts.
    """
    CUT = 2
    """
    A whole value may be cut into parts, and a partial value may be reduced and
    scattered.
    """
    GATHERED = 3
    """Like `CUT`, but the value must not be available in parts in any placement."""


class Cut(NamedTuple):
    """
    A part that one use cuts out of a value. `use` is the position of that use among the
    uses of the value, in program order.
    """

    placement: Placement
    use: int


Available = tuple[Placement, ...]
"""
The placements in which a value is available. The first one is the placement in which it
is computed.
"""


class OpAlternative(NamedTuple):
    """
    One alternative of an op on a mesh axis.

    - `strategy`: the placements of operands and results;
    - `takes`: for each operand, the way in which the op may obtain the operand in its
      placement;
    - `cost`: the cost of the op.
    """

    strategy: AxisStrategy
    takes: tuple[Take, ...]
    cost: float

    def available(self, result: int) -> Available:
        """
        Returns the placement of the op's result number `result`, in a tuple of length
        one.
        """
        return self.strategy.results[result : result + 1]


class ValueAlternative(NamedTuple):
    """
    One alternative of a value: the placements in which the value is kept for its uses
    (`placements`). If `cut` is given, one use cuts a part out of the value, or reduces
    and scatters the value, and later uses can take the resulting part too.
    """

    placements: Available
    cut: Cut | None = None

    def available(self, result: int) -> Available:
        """
        Returns the placements in which the value is kept. `result` is ignored, because
        the node stands for one value only.
        """
        return self.placements

    @property
    def placement(self) -> Placement:
        """The placement in which the value is computed."""
        return self.placements[0]


Alternative = OpAlternative | ValueAlternative
