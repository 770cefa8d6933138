"""The decisions for a program: a strategy for each op of each function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, OpResult

from distir.planning.graph.strategies import Sharding, Strategy
from distir.sharding.placement import Placement


@dataclass(eq=False)
class FunctionPlan(Generic[Sharding]):
    """
    The sharding of all values of a function, for calls that share these decisions. A
    sharding is either a layout, or a placement on one mesh axis.

    - `arguments`, `results`: the shardings of the arguments and results;
    - `ops`: the strategy of each op; calls and the return are left out;
    - `calls`: the plan of the callee of each call;
    - `kept`: the values that are brought to a new sharding, once for all their uses.
    """

    function: FuncOp
    arguments: Sequence[Sharding]
    results: Sequence[Sharding]
    ops: Mapping[Operation, Strategy[Sharding]]
    calls: Mapping[CallOp, FunctionPlan[Sharding]]
    kept: Mapping[OpResult, Sharding] = field(default_factory=dict[OpResult, Sharding])

    def sharding_of(self, value: OpResult) -> Sharding:
        """
        Returns the sharding in which `value`, a result of an op or a call, is available
        to its uses.
        """
        if value in self.kept:
            return self.kept[value]
        op = value.op
        given = self.calls[op] if isinstance(op, CallOp) else self.ops[op]
        return given.results[value.index]


class Caller(Protocol):
    """
    A record of one function. `calls` holds a record of the same type for the callee of
    each call.
    """

    @property
    def calls(self) -> Mapping[CallOp, Any]: ...


AxisPlan: TypeAlias = FunctionPlan[Placement]
"""
The effect of one mesh axis on a function, for those calls of it that are treated alike.
"""

_Caller = TypeVar("_Caller", bound=Caller)


def with_callees(entry: _Caller) -> Iterator[_Caller]:
    """
    Yields `entry` and the callees that it reaches through `calls`, directly or not.
    Each is yielded once, after at least one of its callers.
    """
    found: dict[_Caller, None] = {entry: None}
    pending = [entry]
    while pending:
        caller = pending.pop()
        yield caller
        for callee in caller.calls.values():
            if callee not in found:
                found[callee] = None
                pending.append(callee)
