"""Lets rules write formulas of gradients with Python's operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.ir import SSAValue

from distir.gradients.rule import GradientBuilder


@dataclass(frozen=True)
class Term:
    """
    A value in a formula. An operator appends the ONNX op that computes it; a number is a
    constant of the element type of the other operand.
    """

    value: SSAValue
    build: GradientBuilder

    def onnx(self, name: str, *others: Term | float, **attributes: Any) -> Term:
        """Appends an ONNX op of this value and others, and returns its result."""
        values = [
            v.value if isinstance(v, Term) else self.build.scalar(v, self.value)
            for v in others
        ]
        found = self.build.onnx(name, self.value, *values, **attributes)
        return Term(found, self.build)

    def constant(self, number: float) -> Term:
        """Returns a scalar of this value's element type."""
        return Term(self.build.scalar(number, self.value), self.build)

    def where(self, condition: Term, otherwise: Term | float) -> Term:
        """Returns this value where the condition is true, the other one elsewhere."""
        if not isinstance(otherwise, Term):
            otherwise = self.constant(otherwise)
        return condition.onnx("Where", self, otherwise)

    def __add__(self, other: Term | float) -> Term:
        return self.onnx("Add", other)

    def __radd__(self, other: float) -> Term:
        return self.constant(other).onnx("Add", self)

    def __sub__(self, other: Term | float) -> Term:
        return self.onnx("Sub", other)

    def __rsub__(self, other: float) -> Term:
        return self.constant(other).onnx("Sub", self)

    def __mul__(self, other: Term | float) -> Term:
        return self.onnx("Mul", other)

    def __truediv__(self, other: Term | float) -> Term:
        return self.onnx("Div", other)

    def __neg__(self) -> Term:
        return self.onnx("Neg")

    def __gt__(self, other: Term | float) -> Term:
        return self.onnx("Greater", other)

    def __lt__(self, other: Term | float) -> Term:
        return self.onnx("Less", other)
