"""The values of a per-rank program that may share memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.collective_ops.rank_form import RankSliceOp
from distir.dialects.onnx_ops.traits import FRESH
from distir.program import reachable_functions, return_op


def is_fresh(op: Operation) -> bool:
    """
    Whether all results of an op lie in new memory. Returns False for an unknown op,
    because it may return an operand or a view of one.
    """
    return FRESH.of(op) or isinstance(op, RankSliceOp)  # a copy of the part


@dataclass
class SharedMemory:
    """
    An analysis of the values of a program that may lie in the same memory. `returned`
    has, by function name and for each result, the indices of the arguments that the
    result may share memory with.
    """

    returned: dict[str, list[frozenset[int]]] = field(
        default_factory=dict[str, list[frozenset[int]]]
    )

    @staticmethod
    def of(module: ModuleOp) -> SharedMemory:
        """
        Returns the analysis of all functions that the entry function calls, directly or
        indirectly.
        """
        found = SharedMemory()
        for function in reachable_functions(module):  # callees first
            found._add(function)
        return found

    def _add(self, function: FuncOp) -> None:
        origins: dict[SSAValue, frozenset[int]] = {
            argument: frozenset((i,)) for i, argument in enumerate(function.args)
        }
        for op in function.body.block.ops:
            for value, operands in self.sources(op).items():
                origins[value] = frozenset[int]().union(
                    *(origins.get(operand, ()) for operand in operands)
                )
        self.returned[function.sym_name.data] = [
            origins.get(value, frozenset()) for value in return_op(function).operands
        ]

    def sources(self, op: Operation) -> Mapping[SSAValue, list[SSAValue]]:
        """Returns the operands that each result of an op may share memory with."""
        if isinstance(op, CallOp):
            returned = self.returned[op.callee.string_value()]
            return {
                result: [op.operands[i] for i in sorted(indices)]
                for result, indices in zip(op.results, returned, strict=True)
            }
        operands = [] if is_fresh(op) else list(op.operands)
        return dict.fromkeys(op.results, operands)

    def users(self, value: SSAValue) -> set[Operation]:
        """Returns the ops that use `value`, or a value that may share its memory."""
        found: set[Operation] = set()
        pending, seen = [value], {value}
        while pending:
            current = pending.pop()
            for use in current.uses:
                op = use.operation
                found.add(op)
                for result, operands in self.sources(op).items():
                    if current in operands and result not in seen:
                        seen.add(result)
                        pending.append(result)
        return found
