"""The variables of a method: names for the values of its function."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.collective import CollectiveOp, CoordinateOp
from distir.dialects.torch import MessageOp
from distir.dialects.train_ops.gathered_recurrent import GatheredOp
from distir.lowering.emitter import known_constant
from distir.lowering.helper_modules import helper_modules
from distir.lowering.source.class_names import ClassNames
from distir.lowering.source.expressions import Expression, listed
from distir.lowering.source.identifiers import Names, sanitized
from distir.lowering.source.runs import MethodPlan, ValueList, plan

_MODULES = ("torch", "F", "nn", "modules", *sorted(helper_modules()))
"""Names that a method's variables must not hide."""

Key = SSAValue | ValueList
"""What a variable holds: a value, or those of several calls."""


class MethodNames:
    """
    The `ValueNames` of a method's ops, in a class whose names are `writer`.

    - `plan`: the method's statements;
    - `variables`: the local variables that hold one value each, with arguments that are deleted;
    - `expressions`: what stands for a value, such as a variable or a member;
    - `popped`: lists whose elements are removed one by one, until they are empty.
    """

    def __init__(self, writer: ClassNames, function: FuncOp):
        self.writer = writer
        self.plan: MethodPlan = plan(function, writer.program.passed_members)
        self.names = Names(_MODULES)
        self.expressions: dict[SSAValue, Expression] = {}
        self.variables: dict[SSAValue, str] = {}
        self.popped: set[ValueList] = set()

    def name(self, value: SSAValue) -> str:
        known = known_constant(value)
        if known is not None:
            return self.writer.constant(known, value.name_hint)
        return str(self.expression(value))

    def listed(self, values: Sequence[SSAValue]) -> list[str]:
        return listed([self.expression(v) for v in values], self.writer.all_of_kind)

    def helper(self, module: str) -> str:
        return self.writer.helper(module)

    def group(self, op: Operation) -> str:
        assert isinstance(op, CollectiveOp | CoordinateOp | GatheredOp | MessageOp)
        assert op.axes is not None  # the per-rank form
        return self.writer.group(op, tuple(a.data for a in op.axes.data))

    def number(self, value: int) -> str:
        return self.writer.number(value)

    def expression(self, value: SSAValue) -> Expression:
        if known_constant(value) is not None:
            return Expression(self.name(value))
        if (known := self.expressions.get(value)) is not None:
            return known
        source, index, part = self.plan.lists[value]
        end = "" if part is None else f"[{part}]"
        return Expression(source.name, index, end)

    def result(self, value: SSAValue) -> str:
        name = self.names.fresh(self.writer.hint(value), "x")
        self.bind(value, name)
        return name

    def bind(self, value: SSAValue, name: str) -> None:
        self.variables[value] = name
        self.expressions[value] = Expression(name)

    def key(self, value: SSAValue) -> Key:
        held = self.plan.lists.get(value)
        return value if held is None else held[0]

    def plural(self, value: SSAValue) -> str:
        hint = sanitized(self.writer.hint(value)) or "value"
        return hint if hint.endswith(("s", "ed")) else f"{hint}s"
