"""What is known of a function for one kind of call, before anything is chosen."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from distir.planning.axes.alternatives import Alternative, OpAlternative, Source, Ways
from distir.sharding.placement import Placement

ArgumentKey = tuple[Placement, Source]
"""What an argument comes as, and what it is computed from."""

A = TypeVar("A", bound=Alternative, covariant=True)


class Alternatives(tuple[A, ...]):
    """
    The alternatives of ops that are alike: one object for all of them, known by its identity,
    as it takes long to hash.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class ArgumentFacts:
    """What is known of an argument of a function for one kind of call."""

    def __init__(self, placement: Placement | None, source: Source, requested: bool):
        self.fixed = placement
        self.source: Source = source
        self.requested = requested
        self.possible: dict[Placement, None] = {}

    def add(self, placements: Iterable[Placement]) -> bool:
        """Whether these are new ways in which it may come."""
        before = len(self.possible)
        self.possible |= dict.fromkeys(placements)
        return len(self.possible) > before


@dataclass(eq=False)
class Reached:
    """
    A function, for all calls of one kind.

    - `kinds`: of each call, which calls of a function are of one kind;
    - `possible`: in which placements a value may be there;
    - `sources`: what values are computed from, if not from activations; `requested`: those
      of them that come split already, not by this plan;
    - `strategies`: of each op but calls and the return; `calls`: what is called.
    """

    function: FuncOp
    arguments: Sequence[ArgumentFacts]
    kinds: Mapping[CallOp, Hashable]
    possible: dict[SSAValue, Ways] = field(default_factory=dict[SSAValue, Ways])
    sources: dict[SSAValue, Source] = field(default_factory=dict[SSAValue, Source])
    requested: set[SSAValue] = field(default_factory=set[SSAValue])
    calls: dict[CallOp, Reached] = field(default_factory=dict[CallOp, "Reached"])
    strategies: dict[Operation, Alternatives[OpAlternative]] = field(
        default_factory=dict[Operation, Alternatives[OpAlternative]]
    )
    seen: set[tuple[Ways, ...]] = field(default_factory=set[tuple[Ways, ...]])
    """The ways in which the operands of calls were found to come so far."""
