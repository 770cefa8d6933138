"""The propagation of the split into micro-batches through a program."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp
from distir.errors import DistIRError
from distir.planning.axes.axis_op import AxisProgram
from distir.planning.graph.function_plan import AxisPlan
from distir.planning.graph.strategies import AxisStrategy, PassPartial, Strategy
from distir.sharding.placement import (
    REPLICATED,
    PartialPlacement,
    Placement,
    SplitPlacement,
)


class MicroBatchPlanner:
    """
    Propagates placements on the micro-batch axis from the arguments forwards. The
    coordinates of this axis are moments in time, not devices.

    No costs are compared, because a device cannot save work by communicating with
    itself at a different time. An op keeps the split of its operands if its rule allows
    the split, and partial values pass if the rule is linear in them. Any other operand
    is made whole first. Ops that depend on an operand made whole run once per step
    instead of once per micro-batch.
    """

    def __init__(self, program: AxisProgram):
        self.program = program
        self._solved: dict[tuple[str, tuple[Placement, ...]], AxisPlan] = {}
        # The operands that a function, or one that it calls, gathers or reduces.
        self._gathered: dict[AxisPlan, frozenset[tuple[Operation, int]]] = {}

    def solve(self, arguments: Sequence[Placement]) -> AxisPlan:
        """
        Returns the plan of the entry function for arguments in the placements
        `arguments`.
        """
        return self._solve(self.program.entry.sym_name.data, arguments)

    def _solve(self, name: str, arguments: Sequence[Placement]) -> AxisPlan:
        """
        Returns the plan of function `name` for arguments in the placements `arguments`.
        A plan is computed once for equal arguments.
        """
        key = (name, tuple(arguments))
        if key not in self._solved:
            self._solved[key] = self._function(name, key[1])
        return self._solved[key]

    def _function(self, name: str, arguments: tuple[Placement, ...]) -> AxisPlan:
        block = self.program.functions[name].body.block
        placed: dict[SSAValue, Placement] = dict(
            zip(block.args, arguments, strict=True)
        )
        ops: dict[Operation, AxisStrategy] = {}
        calls: dict[CallOp, AxisPlan] = {}
        gathered: set[tuple[Operation, int]] = set()
        for op in list(block.ops):
            have = [placed[v] for v in op.operands]
            if isinstance(op, ReturnOp):
                results = self._returned(name, have, arguments)
                function = self.program.functions[name]
                solved = AxisPlan(function, arguments, results, ops, calls)
                self._gathered[solved] = frozenset(gathered)
                return solved
            if isinstance(op, CallOp):
                callee = calls[op] = self._callee(op.callee.string_value(), have)
                gathered |= self._gathered[callee]
                taken, given = callee.arguments, callee.results
            else:
                strategy = ops[op] = self._op(op, have)
                taken, given = strategy.operands, strategy.results
            for i, (before, after) in enumerate(zip(have, taken, strict=True)):
                if before != REPLICATED == after:
                    gathered.add((op, i))
            placed.update(zip(op.results, given, strict=True))
        raise DistIRError(f"function @{name} does not end in func.return")

    def _returned(
        self, name: str, have: Sequence[Placement], arguments: Sequence[Placement]
    ) -> tuple[Placement, ...]:
        if name != self.program.entry.sym_name.data:
            return tuple(have)
        return tuple(
            arguments[self.program.updates[i]]
            if i in self.program.updates
            else (REPLICATED if isinstance(p, PartialPlacement) else p)
            for i, p in enumerate(have)
        )

    def _op(self, op: Operation, have: list[Placement]) -> AxisStrategy:
        if isinstance(op, ConstrainOp) and not op.fixes(self.program.axis):
            return Strategy((None,), (have[0],), (have[0],))
        found = self._partial(op, have) or self._split(op, have)
        found = found or self.program.info(op).strategy(None)
        assert found is not None
        return found

    def _callee(self, name: str, have: Sequence[Placement]) -> AxisPlan:
        """
        Returns the plan of the called function `name` for operands in the placements
        `have`. Partial operands stay partial if the function is linear in them, as a
        backward pass is in its incoming gradients. Otherwise they are reduced before
        the call.
        """
        keys = [REPLICATED if isinstance(p, PartialPlacement) else p for p in have]
        callee = self._solve(name, keys)
        if keys != list(have):
            passed = self._solve(name, have)
            if self._gathered[passed] <= self._gathered[callee]:
                return passed
        return callee

    def _partial(self, op: Operation, have: Sequence[Placement]) -> AxisStrategy | None:
        """
        Returns the strategy that lets partial values pass, if the op's rule is linear
        in exactly the partial operands, else None.
        """
        over = frozenset(
            i for i, p in enumerate(have) if isinstance(p, PartialPlacement)
        )
        reductions = {p.reduction for p in have if isinstance(p, PartialPlacement)}
        if len(reductions) != 1 or any(isinstance(p, SplitPlacement) for p in have):
            return None
        (reduction,) = reductions
        for number, linear in enumerate(self.program.info(op).rule.linear):
            if linear.operands == over and reduction in linear.reductions:
                partial = PartialPlacement(reduction)
                option = PassPartial(number, reduction)
                return Strategy((option,), tuple(have), (partial,) * len(op.results))
        return None

    def _split(self, op: Operation, have: Sequence[Placement]) -> AxisStrategy | None:
        """
        Returns the strategy that agrees with the placements of all split operands, or
        None if there is none.
        """
        info = self.program.info(op)
        split = {i: p for i, p in enumerate(have) if isinstance(p, SplitPlacement)}
        for i, placement in split.items():
            key = info.factor_of(False, i, placement)
            strategy = None if key is None else info.strategy(key)
            if strategy is None or strategy.parts:
                continue
            if all(strategy.operands[j] == p for j, p in split.items()):
                return strategy
        return None
