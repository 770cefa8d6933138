"""
Classifies communication by the source of its operand and the use of its result.

- `dp`: reductions of gradients, and of other values on which no contraction of this
  step depends;
- `params`: gathers of parameters that are stored in parts or updated in parts;
- `tp`: all other collectives, which communicate activations and their gradients;
- `pp`: sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import (
    AllGatherOp,
    AllReduceOp,
    ReduceScatterOp,
)
from distir.dialects.dist import SendOp
from distir.program import (
    arguments_of,
    functions,
    reachable_functions,
    return_op,
)
from distir.sharding.signatures import Signatures

Kind = Literal["dp", "tp", "pp", "params"]
KINDS: Sequence[Kind] = ("dp", "tp", "pp", "params")

REDUCTIONS = (AllReduceOp, ReduceScatterOp)


def chain_from_argument(gather: AllGatherOp) -> list[Operation]:
    """
    Returns the ops that lead from an argument of the function to `gather`, ending with
    `gather`. The ops before the gather, such as a cast, must have no other uses.
    Returns an empty list if the gathered value does not come from an argument in this
    way.
    """
    chain: list[Operation] = [gather]
    while not isinstance(source := chain[0].operands[0], BlockArgument):
        op = source.owner
        assert isinstance(op, Operation)
        is_simple = len(op.operands) == len(op.results) == 1
        if not is_simple or isinstance(op, CallOp | SendOp):
            return []
        if len(list(source.uses)) > 1:
            return []
        chain.insert(0, op)
    return chain


_KIND = "overlap.kind"
"""The attribute in which an op holds its kind of communication during the rewrites."""


def write_kinds(module: ModuleOp) -> None:
    """Writes the kind of communication onto each collective and send of a program."""
    kinds = _Kinds(module)
    for op in module.walk():
        if isinstance(op, CollectiveOp | SendOp):
            write_kind(op, kinds.of(op))


def kind_of(op: Operation) -> str:
    """
    Returns the kind of communication that was written onto `op`, or "" if there is
    none.
    """
    kind = op.attributes.get(_KIND)
    return kind.data if isinstance(kind, StringAttr) else ""


def write_kind(op: Operation, kind: str) -> None:
    """Writes the kind of communication `kind` onto `op`."""
    op.attributes[_KIND] = StringAttr(kind)


def erase_kinds(within: Operation) -> None:
    """
    Removes the kinds of communication that were written onto ops of a program or of a
    function.
    """
    for op in within.walk():
        op.attributes.pop(_KIND, None)


class _Kinds:
    """Finds the kind of communication of each collective and send of a program."""

    def __init__(self, module: ModuleOp):
        self._functions = functions(module)
        reachable = reachable_functions(module)
        self._calls: dict[str, list[CallOp]] = {}
        for function in reachable:
            for op in function.body.block.ops:
                if isinstance(op, CallOp):
                    name = op.callee.string_value()
                    self._calls.setdefault(name, []).append(op)
        self._stored = self._arguments_of_parameters(reachable)
        self._needed = self._needed_in_this_step(reachable)

    def of(self, op: CollectiveOp | SendOp) -> Kind:
        """Returns the kind of communication of `op`."""
        if isinstance(op, SendOp):
            return "pp"
        if isinstance(op, REDUCTIONS):
            return "tp" if op.result in self._needed else "dp"
        if isinstance(op, AllGatherOp):
            chain = chain_from_argument(op)
            if chain and chain[0].operands[0] in self._stored:
                return "params"
            if op.result not in self._needed:
                return "params"
        return "tp"

    def _arguments_of_parameters(self, reachable: Sequence[FuncOp]) -> set[SSAValue]:
        """
        Returns the function arguments that hold a parameter of the program in every
        call of their function. Includes the parameters themselves, which are arguments
        of the entry function.
        """
        *_, entry = reachable
        found: set[SSAValue] = {
            argument.value
            for argument in arguments_of(entry)
            if argument.role == "parameter"
        }
        for function in reversed(reachable):
            if function is entry:
                continue
            calls = self._calls.get(function.sym_name.data, [])
            for i, arg in enumerate(function.body.block.args):
                if calls and all(call.operands[i] in found for call in calls):
                    found.add(arg)
        return found

    def _needed_in_this_step(self, reachable: Sequence[FuncOp]) -> set[SSAValue]:
        """
        Returns the values on which a contraction of the program depends, directly or
        indirectly.
        """
        pending: list[SSAValue] = []
        signatures = Signatures()
        for function in reachable:
            for op in function.body.block.ops:
                is_other = isinstance(op, CallOp | ReturnOp | CollectiveOp | SendOp)
                if not is_other and signatures.rule(op).flops:
                    pending += op.operands
        found: set[SSAValue] = set()
        while pending:
            value = pending.pop()
            if value not in found:
                found.add(value)
                pending += self._sources(value)
        return found

    def _sources(self, value: SSAValue) -> Sequence[SSAValue]:
        """
        Returns the values from which `value` is computed directly. For a result of a
        call, this is the value that the called function returns; for an argument, the
        operands of the calls.
        """
        if isinstance(value, BlockArgument):
            function = value.block.parent_op()
            assert isinstance(function, FuncOp)
            calls = self._calls.get(function.sym_name.data, [])
            return [call.operands[value.index] for call in calls]
        op = value.owner
        assert isinstance(op, Operation)
        if isinstance(op, CallOp):
            callee = self._functions[op.callee.string_value()]
            index = next(i for i, r in enumerate(op.results) if r is value)
            return [return_op(callee).operands[index]]
        return op.operands
