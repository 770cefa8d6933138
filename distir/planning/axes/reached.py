"""Facts about a function, for one kind of call, before any layout is chosen."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from distir.planning.axes.alternatives import (
    Alternative,
    Available,
    OpAlternative,
    Source,
)
from distir.sharding.placement import Placement

ArgumentKey = tuple[Placement, Source]
"""The placement in which an argument comes, and what it is computed from."""

A = TypeVar("A", bound=Alternative, covariant=True)


class Alternatives(tuple[A, ...]):
    """
    The alternatives of ops that are alike: a tuple that all of them share, compared by
    identity because it takes long to hash.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class ArgumentFacts:
    """Facts about an argument of a function for one kind of call."""

    def __init__(self, placement: Placement | None, source: Source, requested: bool):
        self.fixed = placement
        self.source: Source = source
        self.requested = requested
        self.possible: dict[Placement, None] = {}

    def add(self, placements: Iterable[Placement]) -> bool:
        """
        Adds placements in which the argument may come; returns whether any of them is new.
        """
        before = len(self.possible)
        self.possible |= dict.fromkeys(placements)
        return len(self.possible) > before


@dataclass(eq=False)
class Reached:
    """
    Facts about a function that hold for all its calls of one kind.

    - `kinds`: the kind of each call in it: calls of one kind decide alike;
    - `possible`: the placements in which each value may be available;
    - `sources`: what values are computed from, without activations; `requested`: those of
      them whose split was requested, not chosen here;
    - `strategies`: the alternatives of each op (without calls and the return); `calls`:
      the facts of each callee.
    """

    function: FuncOp
    arguments: Sequence[ArgumentFacts]
    kinds: Mapping[CallOp, Hashable]
    possible: dict[SSAValue, Available] = field(
        default_factory=dict[SSAValue, Available]
    )
    sources: dict[SSAValue, Source] = field(default_factory=dict[SSAValue, Source])
    requested: set[SSAValue] = field(default_factory=set[SSAValue])
    calls: dict[CallOp, Reached] = field(default_factory=dict[CallOp, "Reached"])
    strategies: dict[Operation, Alternatives[OpAlternative]] = field(
        default_factory=dict[Operation, Alternatives[OpAlternative]]
    )
    seen: set[tuple[Available, ...]] = field(default_factory=set[tuple[Available, ...]])
    """The combinations of operand placements in which calls were found to come so far."""
