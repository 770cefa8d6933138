"""
Run lengths worth trying (Rhino section 4.3.3).

Each op can split its factors contiguously, which is with the longest runs. Where that
splits a dimension of an operand or result in shorter runs (the heads of a fused matrix for
query, key and value), the run length spreads to the ops before and behind that can work
with it without traffic, across calls too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.dialects.dist import Shard
from distir.planning.strategies import Run, split_of
from distir.sharding.mesh import Mesh
from distir.sharding.rule import Dim, Rule, factor_shards

MAX_RUNS = 4
"""Run lengths per op and axis."""

_Split = tuple[int, int]
"""A dimension and the run length in which it is split."""


class RunLengths:
    """Finds the run lengths for one axis. `rules` has the rule of every op but calls."""

    def __init__(
        self,
        functions: Sequence[FuncOp],
        rules: Mapping[Operation, Rule],
        mesh: Mesh,
        axis: str,
    ):
        self.functions = {f.sym_name.data: f for f in functions}
        self.rules = rules
        self.mesh = mesh
        self.axis = axis
        self.runs: dict[Operation, set[Run]] = {}
        """Per op the factors with run lengths to try."""
        self._known: dict[SSAValue, set[_Split]] = {}
        self._pending: deque[tuple[SSAValue, _Split]] = deque()
        self._calls: dict[str, list[CallOp]] = {}
        for function in functions:
            for op in function.body.block.ops:
                if isinstance(op, CallOp):
                    self._calls.setdefault(op.callee.string_value(), []).append(op)

    def spread(self) -> dict[Operation, set[Run]]:
        """Runs to the end."""
        for op, rule in self.rules.items():
            for factor in range(len(rule.factors)):
                if rule.factors[factor].kind != "replicate":
                    self._add_splits(op, rule, factor, None)
        while self._pending:
            value, split = self._pending.popleft()
            self._follow(value, split)
        return self.runs

    def _add_splits(
        self, op: Operation, rule: Rule, factor: int, run: int | None
    ) -> None:
        if rule.factors[factor].size % (self.mesh.size(self.axis) * (run or 1)):
            return
        shard = Shard(self.axis, run)
        sides = ((op.operands, rule.operands), (op.results, rule.results))
        for values, all_dims in sides:
            for value, dims in zip(values, all_dims, strict=True):
                found = split_of(dims, rule, factor, shard, self.mesh)
                if found is not None and found[1].run is not None:
                    self._add(value, (found[0], found[1].run))

    def _add(self, value: SSAValue, split: _Split) -> None:
        known = self._known.setdefault(value, set())
        if split not in known:
            known.add(split)
            self._pending.append((value, split))

    def _follow(self, value: SSAValue, split: _Split) -> None:
        """Tells the ops that use a value, and the one that makes it."""
        for use in value.uses:
            op = use.operation
            if isinstance(op, CallOp):
                callee = self.functions[op.callee.string_value()]
                self._add(callee.body.block.args[use.index], split)
            elif isinstance(op, ReturnOp):
                self._returned(op, use.index, split)
            elif op in self.rules:
                rule = self.rules[op]
                self._use(op, rule, rule.operands[use.index], split)
        owner = value.owner
        if isinstance(value, BlockArgument):
            function = value.block.parent_op()
            assert isinstance(function, FuncOp)
            for call in self._calls.get(function.sym_name.data, ()):
                self._add(call.operands[value.index], split)
        elif not isinstance(value, OpResult):
            return
        elif isinstance(owner, CallOp):
            callee = self.functions[owner.callee.string_value()]
            last = callee.body.block.last_op
            assert last is not None
            self._add(last.operands[value.index], split)
        elif isinstance(owner, Operation) and owner in self.rules:
            rule = self.rules[owner]
            index = value.index
            self._use(owner, rule, rule.results[index], split)

    def _returned(self, op: ReturnOp, index: int, split: _Split) -> None:
        function = op.parent_op()
        assert isinstance(function, FuncOp)
        for call in self._calls.get(function.sym_name.data, ()):
            self._add(call.results[index], split)

    def _use(
        self, op: Operation, rule: Rule, dims: Sequence[Dim], split: _Split
    ) -> None:
        """An op that works on a value split like that splits one factor in runs."""
        dim, run = split
        shards = (Shard(self.axis, run),)
        for factor, own in (
            factor_shards(shards, dims[dim], rule, self.mesh) or {}
        ).items():
            own_run = own[0].run
            runs = self.runs.setdefault(op, set())
            if own_run is None or (factor, own_run) in runs or len(runs) >= MAX_RUNS:
                continue
            if rule.factors[factor].kind != "replicate":
                runs.add((factor, own_run))
                self._add_splits(op, rule, factor, own_run)
