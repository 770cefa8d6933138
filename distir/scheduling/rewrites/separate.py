"""
Separates runs of functions by cloning the functions, so that ops can be rewritten in
one run without a change of the other runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.program import (
    calls_of,
    entry_function,
    functions,
    reachable_functions,
    unique_name,
)
from distir.program.functions import erase_unreachable

CallPath = tuple[CallOp, ...]


@dataclass(frozen=True)
class OpGroup:
    """
    Ops of one run of a function that are rewritten together.

    - `path`: the calls that lead to this run, from the entry function on;
    - `ops`: the ops, in the order of the program;
    - `inputs`: the values that the arguments of a pattern stand for, in their order.
    """

    path: CallPath
    ops: tuple[Operation, ...]
    inputs: tuple[SSAValue, ...] = ()


def separate(module: ModuleOp, groups: Sequence[OpGroup]) -> list[OpGroup]:
    """
    Clones functions so that a change of the ops in `groups` affects only the runs of
    these groups. A function that other runs also call is cloned once per set of groups,
    not once per call. Returns the groups after cloning: without duplicates in a
    function, and each with an empty path.
    """
    separator = _Separator(module, groups)
    separator.separate()
    return separator.found


class _Separator:
    def __init__(self, module: ModuleOp, groups: Sequence[OpGroup]):
        self.module = module
        self.known = functions(module)
        self.entry = entry_function(module)
        self.found: list[OpGroup] = []
        self._own: dict[CallPath, list[OpGroup]] = {}
        self._on_the_way: set[CallPath] = set()
        # Maps a function and its treatment to the function that is the result.
        self._made: dict[_Treatment, FuncOp] = {}
        self._clones: dict[FuncOp, str] = {}
        for group in groups:
            self._own.setdefault(group.path, []).append(group)
            for end in range(len(group.path) + 1):
                self._on_the_way.add(group.path[:end])
        self._runs: Counter[_Treatment] = Counter()
        self._whole = self._treatment(self.entry, ())
        self._all_runs = _runs(module)

    def separate(self) -> None:
        """Clones the functions and redirects calls to the clones."""
        self._function(self._whole)
        erase_unreachable(self.module)
        self._restore_names()

    def _treatment(self, function: FuncOp, path: CallPath) -> _Treatment:
        """Returns the rewrites of `function` when it is called along `path`."""
        calls = tuple(
            (i, self._treatment(self.known[op.callee.string_value()], (*path, op)))
            for i, op in enumerate(function.body.block.ops)
            if isinstance(op, CallOp) and (*path, op) in self._on_the_way
        )
        own = tuple((g.ops, g.inputs) for g in self._own.get(path, ()))
        found = _Treatment(function, own, calls)
        self._runs[found] += 1
        return found

    def _function(self, treatment: _Treatment) -> FuncOp:
        """
        Returns the function that receives the rewrites of `treatment`. Each function is
        made once.
        """
        if treatment not in self._made:
            self._made[treatment] = self._make(treatment)
        return self._made[treatment]

    def _make(self, treatment: _Treatment) -> FuncOp:
        function = new = treatment.function
        before = function.body.block
        if self._runs[treatment] < self._all_runs[function]:
            new = function.clone()
            name = function.sym_name.data
            new.properties["sym_name"] = StringAttr(unique_name(self.module, name))
            Rewriter.insert_op(new, InsertPoint.after(function))
            self._clones[new] = name
        body = new.body.block
        op_of = dict(zip(before.ops, body.ops, strict=True))
        value_of: dict[SSAValue, SSAValue] = dict(
            zip(before.args, body.args, strict=True)
        )
        for old, copy in op_of.items():
            value_of.update(zip(old.results, copy.results, strict=True))
        in_order = list(body.ops)
        for i, called in treatment.calls:
            symbol = SymbolRefAttr(self._function(called).sym_name.data)
            in_order[i].properties["callee"] = symbol
        for ops, inputs in treatment.own:
            mapped = tuple(op_of[op] for op in ops)
            self.found.append(OpGroup((), mapped, tuple(value_of[v] for v in inputs)))
        return new

    def _restore_names(self) -> None:
        """
        Gives a clone the name of its original function if the original has left the
        program.
        """
        known = functions(self.module)
        for clone, name in self._clones.items():
            if name not in known:
                symbol = SymbolRefAttr(name)
                for call in calls_of(clone):
                    call.properties["callee"] = symbol
                clone.properties["sym_name"] = StringAttr(name)
                known[name] = clone


class _Treatment(NamedTuple):
    """
    The rewrites of one run of a function: the groups in the function itself (`own`),
    and the rewrites of the functions that it calls, by index of the call (`calls`).
    Runs with equal treatments share one function.
    """

    function: FuncOp
    own: tuple[tuple[tuple[Operation, ...], tuple[SSAValue, ...]], ...]
    calls: tuple[tuple[int, _Treatment], ...]


def _runs(module: ModuleOp) -> Counter[FuncOp]:
    """Returns the number of times that each function runs in one run of the program."""
    known, found = functions(module), Counter([entry_function(module)])
    for function in reversed(reachable_functions(module)):
        for op in function.body.block.ops:
            if isinstance(op, CallOp):
                found[known[op.callee.string_value()]] += found[function]
    return found
