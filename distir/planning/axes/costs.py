"""
What ops and changes of layout cost.

`UnitCosts` knows no cluster: it counts floating-point operations on one device, and bytes
at a low price. Whoever asks for a 4-way split wants the work split 4 ways where that is
possible, and then as little communication as possible.
"""

from __future__ import annotations

from typing import Protocol

from distir.planning.axes.candidates import OpCandidates
from distir.planning.axes.strategies import Strategy
from distir.sharding.placement import Placement
from distir.sharding.prices import gather_price, move_price, reduce_price

PREFERENCE = 1e-6
"""By what fraction of itself a cost is changed so that of equal plans one is meant."""


class CostModel(Protocol):
    """What the strategies of one mesh axis cost, in a unit of the model's own."""

    def op(self, info: OpCandidates, strategy: Strategy) -> float:
        """Of an op under one of its strategies, on one device."""
        ...

    def move(self, have: Placement, want: Placement, size: float) -> float:
        """
        Of bringing a value of `size` bytes (on one device, whole on this axis) from one
        placement to another; infinite where no communication does that.
        """
        ...

    def result(self, have: Placement, size: float) -> float:
        """Of handing out a result of the program of `size` bytes that is there like that."""
        ...

    def gradient(self, info: OpCandidates) -> float:
        """
        Of a contraction with a parameter that every device keeps whole and cuts its part out
        of: in the backward each computes the gradient of the whole.
        """
        ...


class UnitCosts:
    """
    Floating-point operations per device, plus a low price per byte sent, plus a much lower
    one per byte touched. `parts` is the size of the mesh axis. Taking a part of what is
    whole costs nothing.
    """

    def __init__(self, parts: int):
        self.parts = parts

    def op(self, info: OpCandidates, strategy: Strategy) -> float:
        """Its work on one device, and what the parts of its decomposition send."""
        key = (strategy.factor, strategy.run) if strategy.linear < 0 else (None, None)
        candidate = info.candidate(*key)
        assert candidate is not None
        if strategy.linear >= 0:
            # Sums are reduced late.
            return candidate.work * (1 - PREFERENCE)
        # Contiguous splits are simpler than others.
        return candidate.work * (1 if strategy.run is None else 1 + PREFERENCE)

    def move(self, have: Placement, want: Placement, size: float) -> float:
        """Of the collective that does it."""
        if have == want:
            return 0.0
        match have.kind, want.kind:
            case "whole", "split":
                # What is split from the start takes less memory.
                return PREFERENCE * gather_price(size, self.parts)
            case "partial", "split":
                return reduce_price(size, self.parts) / 2
            case _:
                return move_price(have.kind, want.kind, size, self.parts)

    def result(self, have: Placement, size: float) -> float:
        """Of handing a result of the program whole to whoever gets it."""
        return gather_price(size, self.parts) if have.kind == "split" else 0.0

    def gradient(self, info: OpCandidates) -> float:
        """The part of an op's work that other devices do as well."""
        return info.flops * (1 - 1 / self.parts)
