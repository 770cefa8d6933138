"""
Finds the placements that values can have on one mesh axis, and the strategies that ops
have if their operands have these placements.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.dist import ConstrainOp
from distir.planning.axes.alternatives import (
    Alternative,
    Available,
    OpAlternative,
    Source,
    Take,
)
from distir.planning.axes.policy import AxisPolicy
from distir.planning.axes.strategies import (
    OperandFacts,
    OpStrategies,
    takes_one_value,
)
from distir.planning.graph.tied_ops import call_kinds
from distir.program import return_op
from distir.sharding.placement import (
    FREE,
    REPLICATED,
    PartialPlacement,
    Placement,
    SplitPlacement,
)

ArgumentKey = tuple[Placement, Source]
"""
The placement in which an argument comes, and the kind of values that it is computed
from.
"""

A = TypeVar("A", bound=Alternative, covariant=True)


class Alternatives(tuple[A, ...]):
    """
    The alternatives of an op, as one tuple that all equal ops share. Two objects are
    compared by identity, because hashing their contents is slow.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class ArgumentFacts:
    """The facts about an argument of a function in one kind of call."""

    def __init__(self, placement: Placement | None, source: Source, requested: bool):
        self.fixed = placement
        self.source: Source = source
        self.requested = requested
        self.possible: dict[Placement, None] = {}

    def add(self, placements: Iterable[Placement]) -> bool:
        """
        Adds placements in which the caller may pass the argument. Returns whether any
        of them is new.
        """
        before = len(self.possible)
        self.possible |= dict.fromkeys(placements)
        return len(self.possible) > before


@dataclass(eq=False)
class Reached:
    """
    The facts about a function that hold for all its calls of one kind.

    - `kinds`: the kind of each call in the function; calls of one kind share their
      choices;
    - `possible`: the placements in which each value may be available;
    - `sources`: for each value that is not an activation, whether it is computed from
      parameters or from constants;
    - `requested`: the values whose split the user requested;
    - `calls`: the facts of each callee;
    - `strategies`: the alternatives of each op, without calls and the return.
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
    """The combinations of operand placements that calls were found to pass so far."""


ENDS = 2
"""
The number of calls at each end of a sequence of calls of one function that make choices
of their own, in a training step. In a forward program, one call at each end is enough,
because only the first and the last layer have different neighbours there.
"""


class Reach:
    """
    Follows a program forwards from its arguments, because the strategies of an op
    depend on the possible placements of its operands. A function is analysed once per
    kind of call (`call_kinds`).
    """

    def __init__(self, policy: AxisPolicy):
        self.policy = policy
        self.program = policy.program
        self.ends = ENDS if policy.program.updates else 1
        self._known: dict[Hashable, Alternatives[OpAlternative]] = {}
        self._takes_one: dict[Operation, bool] = {}

    def entry(self, arguments: Sequence[ArgumentKey]) -> Reached:
        """
        Analyses the entry function with arguments in the placements `arguments`.
        Returns the facts about the entry function. They contain the alternatives of its
        ops and the facts about all functions that the entry function calls.
        """
        facts: list[ArgumentFacts] = []
        for placement, source in arguments:
            fixed = source != "activation" and isinstance(placement, SplitPlacement)
            fact = ArgumentFacts(placement, source, fixed)
            fact.add([placement])
            facts.append(fact)
        function = self.program.entry
        reached = Reached(function, facts, call_kinds(function, ends=self.ends))
        self._reach(reached)
        return reached

    def _reach(self, reached: Reached) -> None:
        """
        Analyses a function repeatedly, until no call in it receives new placements.
        """
        block = reached.function.body.block
        callees: dict[Hashable, Reached] = {}
        while True:
            again = False
            for arg, fact in zip(block.args, reached.arguments, strict=True):
                reached.possible[arg] = tuple(fact.possible)
                if fact.source != "activation":
                    reached.sources[arg] = fact.source
                if fact.requested:
                    reached.requested.add(arg)
            for op in block.ops:
                if type(op) is ReturnOp:
                    continue
                if type(op) is CallOp:
                    again |= self._reach_call(reached, op, callees)
                    continue
                strategies = self._strategies(reached, op)
                reached.strategies[op] = strategies
                for i, result in enumerate(op.results):
                    reached.possible[result] = tuple(
                        dict.fromkeys(s.strategy.results[i] for s in strategies)
                    )
                self._derive(reached, op)
                self._spread(reached, op)
            if not again:
                return

    def _spread(self, reached: Reached, op: Operation) -> None:
        """
        Adds the placements in which `op` may take its operands to the possible
        placements of these values, because later ops may find the values there.
        """
        strategies = reached.strategies[op]
        for i, value in enumerate(op.operands):
            have = reached.possible[value]
            if value.has_one_use() or FREE in have or value in reached.sources:
                continue
            splits = any(isinstance(p, SplitPlacement) for p in have)
            more = {
                p: None
                for p, take in (
                    (s.strategy.operands[i], s.takes[i]) for s in strategies
                )
                if not isinstance(p, PartialPlacement)
                if take is Take.CUT
                or (splits and take is Take.MOVED)
                or p == REPLICATED
            }
            if not more.keys() <= set(have):
                reached.possible[value] = tuple({**dict.fromkeys(have), **more})

    def _derive(self, reached: Reached, op: Operation) -> None:
        """
        Records whether the results of `op` are computed from parameters, constants or
        activations.
        """
        sources = {reached.sources.get(v, "activation") for v in op.operands}
        if "activation" in sources:
            return
        for result in op.results:
            reached.sources[result] = (
                "parameter" if "parameter" in sources else "constant"
            )
            if any(v in reached.requested for v in op.operands):
                reached.requested.add(result)

    def _reach_call(
        self, reached: Reached, op: CallOp, callees: dict[Hashable, Reached]
    ) -> bool:
        """
        Analyses the callee of a call. Returns whether new facts about the callee
        require another analysis of the calling function.
        """
        static = tuple(self._static(reached, v) for v in op.operands)
        key = (reached.kinds[op], static)
        callee = callees.get(key)
        is_new = callee is None
        if callee is None:
            function = self.program.functions[op.callee.string_value()]
            facts = [ArgumentFacts(*of_argument) for of_argument in static]
            kinds = call_kinds(function, ends=self.ends)
            callee = callees[key] = Reached(function, facts, kinds)
        reached.calls[op] = callee
        came = tuple(reached.possible[v] for v in op.operands)
        more = came not in callee.seen and self._add_incoming(callee, op, came)
        callee.seen.add(came)
        if more or is_new:
            self._reach(callee)
        changed = False
        for result, value in zip(
            op.results, return_op(callee.function).operands, strict=True
        ):
            before = reached.possible.get(result)
            reached.possible[result] = callee.possible[value]
            changed |= before is not None and before != reached.possible[result]
        return (more and not is_new) or changed

    def _add_incoming(
        self, callee: Reached, op: CallOp, came: Sequence[Available]
    ) -> bool:
        """
        Adds the placements in which a call may pass its arguments. Returns whether any
        of them is new. Partial values are reduced before a call.
        """
        info, is_more = self.program.info(op), False
        for i, (facts, available) in enumerate(
            zip(callee.arguments, came, strict=True)
        ):
            splits = [
                fitting
                for p in available
                if isinstance(p, SplitPlacement)
                and (fitting := info.fitting(i, p)) is not None
            ]
            others = [
                REPLICATED if isinstance(p, PartialPlacement) else p
                for p in available
                if not isinstance(p, SplitPlacement)
            ]
            if not others and len(splits) < len(available):
                others = [REPLICATED]
            is_more |= facts.add((*others, *splits))
        return is_more

    def _static(
        self, reached: Reached, value: SSAValue
    ) -> tuple[Placement | None, Source, bool]:
        """
        Returns the facts about an operand of a call that no choice changes: the
        operand's placement, or None if this is not fixed; whether the operand is
        computed from parameters, constants or activations; and whether the user
        requested its split.
        """
        is_argument = isinstance(value, BlockArgument)
        fixed = reached.arguments[value.index].fixed if is_argument else None
        return (
            fixed,
            reached.sources.get(value, "activation"),
            value in reached.requested,
        )

    def _strategies(
        self, reached: Reached, op: Operation
    ) -> Alternatives[OpAlternative]:
        info, policy = self.program.info(op), self.policy
        facts = tuple(
            OperandFacts(
                reached.possible[v],
                reached.sources.get(v, "activation"),
                v in reached.requested,
            )
            for v in op.operands
        )
        hints = tuple(frozenset(policy.hints.get(r, ())) for r in op.results)
        requested = tuple(frozenset(policy.requested.get(r, ())) for r in op.results)
        first = frozenset[SplitPlacement]()
        takes_one = self._takes_one.get(op)
        if takes_one is None:
            takes_one = self._takes_one[op] = takes_one_value(op)
        if takes_one:
            first = frozenset(policy.hints.get(op.operands[0], ()))
        request = (op.layout, op.axes) if type(op) is ConstrainOp else None
        request = request or policy.asked_rows(op)
        key = (info, takes_one, request, facts, hints, requested, first)
        found = self._known.get(key)
        if found is None:
            space = OpStrategies(op, info, policy, first)
            found = self._known[key] = Alternatives(space.of(facts, hints, requested))
        return found
