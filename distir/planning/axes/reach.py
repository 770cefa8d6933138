"""In which ways values can be there on one mesh axis, and what strategies ops have then."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.dist import ConstrainOp
from distir.planning.axes.axis_plan import ArgumentKey, Source
from distir.planning.axes.candidates import AxisStrategy, Take
from distir.planning.axes.graph import ArgumentFacts, Body
from distir.planning.axes.policy import AxisPolicy
from distir.planning.axes.strategies import OperandFacts, OpStrategies
from distir.sharding.placement import FREE, WHOLE, Placement

ENDS = 2
"""So many calls of a function at its beginning and at its end decide for themselves."""


class Reach:
    """
    Follows a program from its arguments: what each op can do depends on the placements in
    which its operands may come. Functions are looked at once per kind of call: the first
    calls of a function, the last ones, and two between, which take turns.
    """

    def __init__(self, functions: Mapping[str, FuncOp], policy: AxisPolicy):
        self.functions = functions
        self.policy = policy
        self.info = policy.info
        self._known: dict[Hashable, Sequence[AxisStrategy]] = {}

    def program(self, function: FuncOp, arguments: Sequence[ArgumentKey]) -> Body:
        """The entry's body, with the strategies of every op in it and what it calls."""
        facts: list[ArgumentFacts] = []
        for placement, source in arguments:
            fixed = source != "activation" and placement.kind == "split"
            fact = ArgumentFacts(placement, source, fixed)
            fact.add([placement])
            facts.append(fact)
        body = Body(function, facts)
        self._call_kinds(body)
        self._reach(body)
        return body

    def _call_kinds(self, body: Body) -> None:
        """
        Between the first and the last calls of a function they take turns with two kinds, so
        that neighbours may differ (a matrix by columns, the next one by rows).
        """
        calls: dict[str, list[CallOp]] = {}
        for op in body.function.body.block.ops:
            if isinstance(op, CallOp):
                calls.setdefault(op.callee.string_value(), []).append(op)
        for name, same in calls.items():
            last = len(same) - ENDS
            for place, op in enumerate(same):
                kind: Hashable = place
                if ENDS <= place < last:
                    kind = "even" if place % 2 == 0 else "odd"
                body.kinds[op] = (name, kind)

    def _reach(self, body: Body) -> None:
        """Follows the program until no call can be reached in a new way."""
        block = body.function.body.block
        callees: dict[Hashable, Body] = {}
        while True:
            again = False
            for arg, fact in zip(block.args, body.arguments, strict=True):
                body.possible[arg] = tuple(fact.possible)
                if fact.source != "activation":
                    body.sources[arg] = fact.source
                if fact.requested:
                    body.requested.add(arg)
            for op in block.ops:
                if isinstance(op, ReturnOp):
                    continue
                if isinstance(op, CallOp):
                    again |= self._reach_call(body, op, callees)
                    continue
                strategies = self._strategies(body, op)
                body.strategies[op] = strategies
                for i, result in enumerate(op.results):
                    body.possible[result] = tuple(
                        dict.fromkeys(s.results[i] for s in strategies)
                    )
                self._derive(body, op)
                self._spread(body, op)
            if not again:
                return

    def _spread(self, body: Body, op: Operation) -> None:
        """As what an op takes its operands, they may be there for the ops behind it."""
        strategies = body.strategies[op]
        for i, value in enumerate(op.operands):
            have = body.possible[value]
            if value.has_one_use() or FREE in have or value in body.sources:
                continue
            splits = any(p.kind == "split" for p in have)
            more = {
                s.operands[i]: None
                for s in strategies
                if s.operands[i].kind != "partial"
                if s.takes[i] is Take.CUT
                or (splits and s.takes[i] is Take.MOVED)
                or s.operands[i] == WHOLE
            }
            if not more.keys() <= set(have):
                body.possible[value] = tuple({**dict.fromkeys(have), **more})

    def _derive(self, body: Body, op: Operation) -> None:
        """Records what an op's results are computed from."""
        sources = {body.sources.get(v, "activation") for v in op.operands}
        if "activation" in sources:
            return
        for result in op.results:
            body.sources[result] = "parameter" if "parameter" in sources else "constant"
            if any(v in body.requested for v in op.operands):
                body.requested.add(result)

    def _reach_call(
        self, body: Body, op: CallOp, callees: dict[Hashable, Body]
    ) -> bool:
        """Whether later looks at this function may see more."""
        info, incoming = self.info(op), []
        for i, value in enumerate(op.operands):
            splits = [
                fitting
                for p in body.possible[value]
                if p.kind == "split" and (fitting := info.fitting(i, p)) is not None
            ]
            others = [
                WHOLE if p.kind == "partial" else p
                for p in body.possible[value]
                if p.kind != "split"
            ]
            if not others and len(splits) < len(body.possible[value]):
                others = [WHOLE]
            incoming.append((*others, *splits))
        static = tuple(self._static(body, v) for v in op.operands)
        key = (body.kinds[op], static)
        callee = callees.get(key)
        is_new = callee is None
        if callee is None:
            function = self.functions[op.callee.string_value()]
            facts = [ArgumentFacts(*of_argument) for of_argument in static]
            callee = callees[key] = Body(function, facts)
            self._call_kinds(callee)
        body.calls[op] = callee
        more = [f.add(w) for f, w in zip(callee.arguments, incoming, strict=True)]
        if any(more) or is_new:
            self._reach(callee)
        changed = False
        for result, value in zip(op.results, callee.last.operands, strict=True):
            before = body.possible.get(result)
            body.possible[result] = callee.possible[value]
            changed |= before is not None and before != body.possible[result]
        return (any(more) and not is_new) or changed

    def _static(
        self, body: Body, value: SSAValue
    ) -> tuple[Placement | None, Source, bool]:
        """What is known of an operand of a call, whatever is chosen."""
        is_argument = isinstance(value, BlockArgument)
        fixed = body.arguments[value.index].fixed if is_argument else None
        return fixed, body.sources.get(value, "activation"), value in body.requested

    def _strategies(self, body: Body, op: Operation) -> Sequence[AxisStrategy]:
        info, policy = self.info(op), self.policy
        name = body.function.sym_name.data
        facts = tuple(
            OperandFacts(
                body.possible[v],
                body.sources.get(v, "activation"),
                v in body.requested,
            )
            for v in op.operands
        )
        every = policy.hints(name)
        hints = tuple(frozenset(every.get(r, ())) for r in op.results)
        wishes = tuple(frozenset(policy.wishes.get(r, ())) for r in op.results)
        is_constrained = isinstance(op, ConstrainOp)
        key = (op if is_constrained else id(info), facts, hints, wishes)
        found = self._known.get(key)
        if found is None:
            space = OpStrategies(op, info, policy)
            found = self._known[key] = space.of(facts, hints, wishes)
        return found
