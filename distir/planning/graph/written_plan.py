"""
The layouts of a plan without its program: by function, op and argument, in program
order.

Such a plan can be applied to any program with the same functions and ops, in another
process too, and written to files as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.parser import Parser

from distir.dialects.dist import Layout, LayoutAttr
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.planning.graph.function_plan import FunctionPlan, with_callees
from distir.planning.graph.strategies import LayoutStrategy, OpLayouts, Strategy
from distir.program import describe, entry_function, functions, return_op
from distir.sharding.layout import check_layout
from distir.sharding.mesh import Mesh
from distir.text import new_context


class PlannedOp(NamedTuple):
    """
    The layouts of an op and, if it is decomposed, of the ops of its decomposition. The
    op's `name` is checked against the program, to detect a plan for another program.
    """

    name: str
    layouts: OpLayouts


class PlannedCall(NamedTuple):
    """
    A call in a written plan. `callee` is the index of the called function among the
    functions of the plan.
    """

    callee: int


class KeptLayout(NamedTuple):
    """
    The layout to which a plan brings a value for all its uses. The value is result
    `result` of the op with index `op`.
    """

    op: int
    result: int
    layout: Layout


Planned: TypeAlias = PlannedOp | PlannedCall


@dataclass(frozen=True)
class PlannedFunction:
    """
    The layouts of a function, for calls that share these layouts. `arguments` and
    `results` are the layouts of its arguments and results. `ops` covers all its ops in
    program order, except the return. `kept` lists the results of ops that the plan
    brings to a new layout.
    """

    arguments: tuple[Layout, ...]
    results: tuple[Layout, ...]
    ops: tuple[Planned, ...]
    kept: tuple[KeptLayout, ...] = ()


@dataclass(frozen=True)
class WrittenPlan:
    """
    The layouts of a `FunctionPlan`, without its program. `functions` has an entry for
    each function: the entry function first, then the functions that it calls.
    """

    functions: tuple[PlannedFunction, ...]

    @staticmethod
    def of(plan: FunctionPlan[Layout]) -> WrittenPlan:
        """
        Returns the layouts that a plan gives to its program in the program's present
        state.
        """
        plans = list(with_callees(plan))
        numbers = {own: number for number, own in enumerate(plans)}
        shared: dict[Planned, Planned] = {}

        def planned(own: FunctionPlan[Layout], op: Operation) -> Planned:
            if type(op) is CallOp:
                found: Planned = PlannedCall(numbers[own.calls[op]])
            else:
                found = PlannedOp(op.name, OpLayouts.of(own.ops[op]))
            return shared.setdefault(found, found)

        def function(own: FunctionPlan[Layout]) -> PlannedFunction:
            ops = _ops(own.function)
            places = {op: place for place, op in enumerate(ops)}
            kept = [KeptLayout(places[v.op], v.index, x) for v, x in own.kept.items()]
            return PlannedFunction(
                tuple(own.arguments),
                tuple(own.results),
                tuple(planned(own, op) for op in ops),
                tuple(sorted(kept, key=lambda k: (k.op, k.result))),
            )

        return WrittenPlan(tuple(map(function, plans)))

    def on(self, module: ModuleOp, mesh: Mesh) -> FunctionPlan[Layout]:
        """
        Returns the plan for `module`, which must have the same functions and ops.
        Raises DistIRError for a program with different functions or ops, and for
        layouts that are impossible on `mesh`.
        """
        return _Reader(self, functions(module), mesh).entry(entry_function(module))

    def to_json(self) -> dict[str, Any]:
        """
        Returns the plan as JSON data. Each layout is written once, as text. Each
        distinct op is written once and refers to its layouts by index. Functions refer
        to their ops by index.
        """
        layouts: dict[Layout, int] = {}
        ops: dict[Planned, int] = {}

        def numbers(some: Sequence[Layout]) -> list[int]:
            return [layouts.setdefault(x, len(layouts)) for x in some]

        found = [
            {
                "arguments": numbers(own.arguments),
                "results": numbers(own.results),
                "ops": [ops.setdefault(op, len(ops)) for op in own.ops],
                "kept": [(k.op, k.result, *numbers((k.layout,))) for k in own.kept],
            }
            for own in self.functions
        ]
        rows: list[list[Any]] = [
            ["func.call", op.callee]
            if isinstance(op, PlannedCall)
            else [
                op.name,
                numbers(op.layouts.operands),
                numbers(op.layouts.results),
                [
                    [numbers(operands), numbers(results)]
                    for operands, results in op.layouts.parts
                ],
            ]
            for op in ops
        ]
        return {"layouts": [str(x) for x in layouts], "ops": rows, "functions": found}

    @staticmethod
    def from_json(data: Any) -> WrittenPlan:
        """
        Restores a plan from the data that `to_json` returned. Raises KeyError,
        TypeError, ValueError or ParseError if `data` is not such data.
        """
        layouts = [_layout(text) for text in data["layouts"]]
        count = len(data["functions"])

        def some(numbers: Any) -> tuple[Layout, ...]:
            return tuple(layouts[_index(n, len(layouts))] for n in numbers)

        def op(name: Any, *rest: Any) -> Planned:
            if not isinstance(name, str):
                raise TypeError(f"{name!r} is no op")
            if name == "func.call":
                (callee,) = rest
                return PlannedCall(_index(callee, count))
            operands, results, parts = rest
            pairs = tuple((some(a), some(b)) for a, b in parts)
            return PlannedOp(name, OpLayouts(some(operands), some(results), pairs))

        ops = [op(*row) for row in data["ops"]]

        def function(own: Any) -> PlannedFunction:
            places = own["ops"]
            return PlannedFunction(
                some(own["arguments"]),
                some(own["results"]),
                tuple(ops[_index(n, len(ops))] for n in places),
                tuple(
                    KeptLayout(_index(at, len(places)), _index(result), *some([layout]))
                    for at, result, layout in own["kept"]
                ),
            )

        if not count:
            raise ValueError("there is no function")
        return WrittenPlan(tuple(map(function, data["functions"])))


def _index(number: Any, count: int | None = None) -> int:
    """
    Returns `number` if it is a valid index: an integer of at least 0, and below `count`
    if that is given. Raises TypeError or ValueError otherwise.
    """
    if type(number) is not int:
        raise TypeError(f"{number!r} is no number of anything")
    if number < 0 or (count is not None and number >= count):
        raise ValueError(f"there is no number {number}")
    return number


@lru_cache(maxsize=4096)
def _layout(text: Any) -> Layout:
    """
    Returns the layout that `text` describes. Raises TypeError, ValueError or ParseError
    for anything else.
    """
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no layout")
    parser = Parser(new_context(), f"#dist.layout{text}")
    found = parser.parse_attribute()
    if not isinstance(found, LayoutAttr) or str(found.data) != text:
        raise ValueError(f"{text!r} is no layout")
    return found.data


def _ops(function: FuncOp) -> list[Operation]:
    """Returns the ops of a function, except its return."""
    return [op for op in function.body.block.ops if type(op) is not ReturnOp]


class _Reader:
    """Matches a plan without its program to the functions and ops of a program."""

    def __init__(
        self, plan: WrittenPlan, known: Mapping[str, FuncOp], mesh: Mesh
    ) -> None:
        self.plan = plan
        self.known = known
        self.mesh = mesh
        self.found: dict[int, FunctionPlan[Layout]] = {}
        self.checked: set[tuple[tuple[int, ...], Layout]] = set()

    def entry(self, function: FuncOp) -> FunctionPlan[Layout]:
        """
        Returns the plan for the entry function. Raises DistIRError if the program does
        not match.
        """
        found = self.of(0, function)
        if len(self.found) < len(self.plan.functions):
            raise DistIRError(
                f"the plan is for another program: it has layouts of "
                f"{len(self.plan.functions)} functions, and only {len(self.found)} of "
                f"them are called; search a plan for this program"
            )
        return found

    def of(self, number: int, function: FuncOp) -> FunctionPlan[Layout]:
        """
        Returns the plan for `function`. `number` is the index of the function in the
        plan. Raises DistIRError if the function differs from the planned one.
        """
        if number in self.found:
            found = self.found[number]
            if found.function is not function:
                raise self._foreign(
                    f"two functions, {_name(function)} and {_name(found.function)}, are "
                    f"one there"
                )
            return found
        own, ops = self.plan.functions[number], _ops(function)
        if len(own.ops) != len(ops):
            raise self._foreign(
                f"{_name(function)} has {len(ops)} ops, and {len(own.ops)} there"
            )
        calls: dict[CallOp, FunctionPlan[Layout]] = {}
        strategies: dict[Operation, LayoutStrategy] = {}
        for op, planned in zip(ops, own.ops, strict=True):
            if isinstance(op, CallOp) and isinstance(planned, PlannedCall):
                callee = self.known[op.callee.string_value()]
                calls[op] = self.of(planned.callee, callee)
            elif isinstance(planned, PlannedOp) and planned.name == op.name:
                strategies[op] = self._strategy(op, planned.layouts)
            else:
                name = "a call" if isinstance(planned, PlannedCall) else planned.name
                raise self._foreign(f"{describe(op)} is {name} there")
        block, end = function.body.block, return_op(function)
        what = _name(function)
        self._check(block.args, own.arguments, f"an argument of {what}")
        self._check(end.operands, own.results, f"a result of {what}")
        kept: dict[OpResult, Layout] = {}
        for at, result, layout in own.kept:
            op = ops[at]
            if result >= len(op.results):
                raise self._foreign(f"{describe(op)} has more results there")
            self._check([op.results[result]], [layout], f"a result of {describe(op)}")
            kept[op.results[result]] = layout
        found = FunctionPlan(
            function, own.arguments, own.results, strategies, calls, kept
        )
        self.found[number] = found
        return found

    def _strategy(self, op: Operation, layouts: OpLayouts) -> LayoutStrategy:
        what = describe(op)
        self._check(op.operands, layouts.operands, f"an operand of {what}")
        self._check(op.results, layouts.results, f"a result of {what}")
        parts = tuple(Strategy((), *part) for part in layouts.parts)
        return Strategy((), layouts.operands, layouts.results, parts)

    def _check(
        self, values: Sequence[SSAValue], layouts: Sequence[Layout], what: str
    ) -> None:
        if len(values) != len(layouts):
            raise self._foreign(f"there are {len(layouts)} of {what} there")
        for value, layout in zip(values, layouts, strict=True):
            key = shape_of(value.type), layout
            if key in self.checked:
                continue
            if layout.mesh != self.mesh.name:
                raise self._foreign(f"{what} is on mesh @{layout.mesh} there")
            check_layout(*key, self.mesh, f"the plan, for {what}")
            self.checked.add(key)

    @staticmethod
    def _foreign(why: str) -> DistIRError:
        return DistIRError(
            f"the plan is for another program: {why}; search a plan for this program"
        )


def _name(function: FuncOp) -> str:
    return f"@{function.sym_name.data}"
