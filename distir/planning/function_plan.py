"""What was decided for a program: a strategy for each op of each function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, OpResult

from distir.dialects.dist import Layout
from distir.planning.strategies import Strategy


@dataclass(eq=False)
class FunctionPlan:
    """
    The layouts in a function, for all calls of it that are treated alike.

    - `arguments`, `results`: how they come and leave;
    - `ops`: of each op but calls and the return;
    - `calls`: what is decided for the functions that it calls;
    - `kept`: values that are brought to another layout for all that use them.
    """

    function: FuncOp
    arguments: Sequence[Layout]
    results: Sequence[Layout]
    ops: Mapping[Operation, Strategy]
    calls: Mapping[CallOp, FunctionPlan]
    kept: Mapping[OpResult, Layout] = field(default_factory=dict[OpResult, Layout])


class Caller(Protocol):
    """What is known of a function, with the same of the functions that it calls."""

    @property
    def calls(self) -> Mapping[CallOp, Any]: ...


_Caller = TypeVar("_Caller", bound=Caller)


def with_callees(entry: _Caller) -> Iterator[_Caller]:
    """The entry and what it calls, each once, callers first."""
    found: dict[_Caller, None] = {entry: None}
    pending = [entry]
    while pending:
        caller = pending.pop()
        yield caller
        for callee in caller.calls.values():
            if callee not in found:
                found[callee] = None
                pending.append(callee)
