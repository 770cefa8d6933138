"""
Block sizes of block-cyclic splits that are worth trying (Rhino, section 4.3.3). A run
is such a block.

Every op can split its factors contiguously, which means with the longest runs. Such a
split may cut a dimension of an operand or result into shorter runs, for example the
heads in a fused matrix for query, key and value. The ops before and after may be able
to work with the same runs without communication. The search therefore tries this run
length for the ops before and after too, also across calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.planning.axes.axis_op import AxisOp
from distir.planning.graph.strategies import SplitFactor
from distir.program import return_op
from distir.sharding.placement import SplitPlacement

MAX_RUNS = 4
"""The maximal number of run lengths per op and axis that a layout search tries."""


class RunLengths:
    """
    Finds the run lengths (blocks of block-cyclic splits) that are worth trying on one
    axis.

    - `functions`: the functions of the program;
    - `info`: a function that returns the strategies of an op on the axis, or None for
      an op that is to be skipped;
    - `backwards`: if True, run lengths spread only from uses to the ops that compute
      the values, without a limit on their number. The runs in the results of a
      contraction also spread to the operands of the next contractions, beside the
      operands that are these results. Attention needs this if several query heads share
      a key head;
    - `runs`: the result: for each op, the factors with the run lengths to try;
    - `splits`: the result: for each value, the block-cyclic splits that ops could work
      on.
    """

    def __init__(
        self,
        functions: Iterable[FuncOp],
        info: Callable[[Operation], AxisOp | None],
        *,
        backwards: bool = False,
    ):
        self.functions = {f.sym_name.data: f for f in functions}
        self.info = info
        self.backwards = backwards
        self.runs: dict[Operation, set[SplitFactor]] = {}
        self.splits: dict[SSAValue, set[SplitPlacement]] = {}
        self._pending: deque[tuple[SSAValue, SplitPlacement]] = deque()
        self._calls: dict[str, list[CallOp]] = {}
        for function in self.functions.values():
            for op in function.body.block.ops:
                if isinstance(op, CallOp):
                    self._calls.setdefault(op.callee.string_value(), []).append(op)
                elif not isinstance(op, ReturnOp) and (own := info(op)) is not None:
                    for factor in range(len(own.rule.factors)):
                        self._add_splits(op, own, SplitFactor(factor))
                        if backwards and own.rule.flops:
                            self._go_ahead(op, own, SplitFactor(factor))
        while self._pending:
            self._follow(*self._pending.popleft())

    def _add_splits(self, op: Operation, info: AxisOp, split: SplitFactor) -> None:
        strategy = info.strategy(split)
        if strategy is None:
            return
        values, places = list(op.operands), list(strategy.operands)
        if not self.backwards:
            values += op.results
            places += strategy.results
        for value, placement in zip(values, places, strict=True):
            if isinstance(placement, SplitPlacement) and placement.run is not None:
                self._add(value, placement)

    def _go_ahead(self, op: Operation, info: AxisOp, split: SplitFactor) -> None:
        """
        Follows the runs (blocks of a block-cyclic split) that the split of an op leaves
        in its results to the next contractions in the same function. Records the runs
        in which these contractions could take their operands.
        """
        strategy = info.strategy(split)
        if strategy is None:
            return
        for result, placement in zip(op.results, strategy.results, strict=True):
            if not isinstance(placement, SplitPlacement) or placement.run is None:
                continue
            for use in result.uses:
                user = use.operation
                own = None if isinstance(user, CallOp | ReturnOp) else self.info(user)
                found = own and own.factor_of(False, use.index, placement)
                if own is None or found is None:
                    continue
                if own.rule.flops:
                    self._add_splits(user, own, found)
                else:
                    self._go_ahead(user, own, found)

    def _add(self, value: SSAValue, split: SplitPlacement) -> None:
        known = self.splits.setdefault(value, set())
        if split not in known:
            known.add(split)
            self._pending.append((value, split))

    def _follow(self, value: SSAValue, split: SplitPlacement) -> None:
        """
        Passes `split`, a block-cyclic split of `value`, on to the op that computes
        `value`. Unless `backwards` is set, also passes the split on to the ops that use
        `value`.
        """
        for use in () if self.backwards else value.uses:
            op = use.operation
            if isinstance(op, CallOp):
                callee = self.functions[op.callee.string_value()]
                self._add(callee.body.block.args[use.index], split)
            elif isinstance(op, ReturnOp):
                for call in self._calls_of(op.parent_op()):
                    self._add(call.results[use.index], split)
            else:
                self._use(op, False, use.index, split)
        if isinstance(value, BlockArgument):
            for call in self._calls_of(value.block.parent_op()):
                self._add(call.operands[value.index], split)
        elif not isinstance(value, OpResult):
            return
        elif not isinstance(value.op, CallOp):
            self._use(value.op, True, value.index, split)
        elif not self.backwards:
            callee = self.functions[value.op.callee.string_value()]
            self._add(return_op(callee).operands[value.index], split)

    def _calls_of(self, function: Operation | None) -> Iterable[CallOp]:
        assert isinstance(function, FuncOp)
        return self._calls.get(function.sym_name.data, ())

    def _use(
        self, op: Operation, is_result: bool, index: int, split: SplitPlacement
    ) -> None:
        """
        Records the factor that `op` splits block-cyclically if one of its values has
        the placement `split`. The value is the result with index `index` if
        `is_result`, else the operand with this index.
        """
        info = self.info(op)
        found = None if info is None else info.factor_of(is_result, index, split)
        if info is None or found is None:
            return
        runs, most = (
            self.runs.setdefault(op, set()),
            inf if self.backwards else MAX_RUNS,
        )
        if found.run is None or found in runs or len(runs) >= most:
            return
        if info.rule.factors[found.factor].kind != "replicate":
            runs.add(found)
            self._add_splits(op, info, found)
