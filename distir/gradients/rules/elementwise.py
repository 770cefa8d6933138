"""
Gradient rules of elementwise functions f of one operand: `dx = dy f'(x)`, written with
Python's operators.

Where possible, the slope f'(x) is computed from the result f(x), so that the operand
need not be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.elementwise import OPERATORS
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import WITHOUT_GRADIENT
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    SingleRule,
    gradient_rule,
    is_differentiable,
    onnx_gradient,
)
from distir.gradients.rules.arithmetic import is_wanted


@dataclass(frozen=True)
class Term:
    """
    A value in a formula. Python's operators on terms append the ONNX op that computes
    the result. A number in a formula becomes a constant with the element type of the
    term with which it is combined.
    """

    value: SSAValue
    build: GradientBuilder

    def onnx(self, name: str, *others: Term | float, **attributes: Any) -> Term:
        """
        Appends the ONNX op `name` with this value and `others` as operands, and returns
        its result.
        """
        values = [
            v.value if isinstance(v, Term) else self.build.scalar(v, self.value)
            for v in others
        ]
        found = self.build.onnx(name, self.value, *values, **attributes)
        return Term(found, self.build)

    def constant(self, number: float) -> Term:
        """Returns a scalar constant with the element type of this value."""
        return Term(self.build.scalar(number, self.value), self.build)

    def where(self, condition: Term, otherwise: Term | float) -> Term:
        """Returns this value where `condition` is true, and `otherwise` elsewhere."""
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


@onnx_gradient("Identity", "Dropout")
def identity(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of Identity and of Dropout outside of training: dy itself."""
    return [dy]


@gradient_rule("onnx.Cast", "onnx.CastLike")
def cast(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of casts: dy in the element type of the operand. An integer operand
    has no gradient.
    """
    (gradient,) = gradients
    x = op.operands[0]
    dx = None
    if gradient is not None and is_differentiable(x):
        dx = build.cast(gradient, x)
    return [dx, *[None] * (len(op.operands) - 1)]


class _FormulaNames(dict[str, Any]):
    """
    The names that the text of a gradient formula may use: x, y and dy, the operators of
    ONNX, and the attributes of the op, which are numbers.
    """

    def __init__(self, op: OnnxOp, dy: SSAValue, build: GradientBuilder):
        x, y = op.operands[0], op.results[0]
        super().__init__(x=Term(x, build), y=Term(y, build), dy=Term(dy, build))
        self.op = op

    def __missing__(self, name: str) -> Any:
        if name[0].islower():
            return self.op.attribute(name)
        return _where if name == "Where" else partial(_operator, name)


def _where(condition: Term, value: Term, otherwise: Term | float) -> Term:
    return value.where(condition, otherwise)


def _operator(name: str, term: Term, *others: Term | float) -> Term:
    return term.onnx(name, *others)


def rule_from(text: str) -> SingleRule:
    """
    Returns the gradient rule that `text` states for an operator of one operand.

    The text is a Python expression of the operand `x`, the result `y` and its gradient
    `dy`, such as `dy * (1 - y * y)`. Capitalised names are operators of ONNX, such as
    `Exp(x)`. Other names are attributes of the op. `Where(x > 0, dy, 0)` chooses
    between values; an infinite slope in the branch that is not chosen has no effect.
    `(t := Tanh(x))` names a value that occurs twice.
    """
    code = compile(text, text, "eval")

    def rule(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
        return [eval(code, {"__builtins__": {}}, _FormulaNames(op, dy, build)).value]

    return rule


for _name, _row in OPERATORS.items():
    if _row.gradient and f"onnx.{_name}" not in WITHOUT_GRADIENT:
        onnx_gradient(_name)(rule_from(_row.gradient))

TermRule = Callable[[OnnxOp, Term, Term, Term], Term]
"""Returns the operand's gradient, given the op, its operand x, its result y and dy."""


def _term_gradient(name: str) -> Callable[[TermRule], TermRule]:
    """
    Returns a decorator that registers the gradient rule of the ONNX operator `name`,
    which has one operand. The decorated function takes and returns terms.
    """

    def register(rule: TermRule) -> TermRule:
        @onnx_gradient(name)
        def gradient(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:  # pyright: ignore[reportUnusedFunction]
            x, y, term = (Term(v, build) for v in (op.operands[0], op.results[0], dy))
            return [rule(op, x, y, term).value]

        return rule

    return register


def _exponential_branch(
    x: Term, y: Term, dy: Term, offset: float, *, factor: float = 1, divisor: float = 1
) -> Term:
    """Returns `factor dy` where x is positive, else `dy (y + offset) / divisor`."""
    below = dy * (y + offset)
    below = below if divisor == 1 else below / divisor
    above = dy if factor == 1 else dy * factor
    return above.where(x > 0, below)


@_term_gradient("Elu")
def elu(op: OnnxOp, x: Term, y: Term, dy: Term) -> Term:
    """Gradient rule of Elu: `dy` where x is positive, else `dy (y + alpha)`."""
    return _exponential_branch(x, y, dy, op.attribute("alpha"))


@_term_gradient("Celu")
def celu(op: OnnxOp, x: Term, y: Term, dy: Term) -> Term:
    """
    Gradient rule of Celu: `dy` where x is positive, else `dy (y + alpha) / alpha`,
    which equals `dy exp(x / alpha)`.
    """
    alpha = op.attribute("alpha")
    return _exponential_branch(x, y, dy, alpha, divisor=alpha)


@_term_gradient("Selu")
def selu(op: OnnxOp, x: Term, y: Term, dy: Term) -> Term:
    """
    Gradient rule of Selu: `gamma dy` where x is positive, else `dy (y + gamma alpha)`.
    """
    gamma = op.attribute("gamma")
    return _exponential_branch(x, y, dy, gamma * op.attribute("alpha"), factor=gamma)


@_term_gradient("HardSwish")
def hard_swish(op: OnnxOp, x: Term, y: Term, dy: Term) -> Term:
    """
    Gradient rule of HardSwish: `dy` from 3 up, zero from -3 down, and `dy (x / 3 + 1 /
    2)` between.
    """
    middle = dy * (x / 3 + 0.5)
    upper = dy.where(x.onnx("GreaterOrEqual", 3), middle)
    return x.constant(0).where(x.onnx("LessOrEqual", -3), upper)


@onnx_gradient("PRelu")
def prelu(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of PRelu. For x it is `dy` where x is positive, else `slope dy`. For
    the slope it is `x dy` where x is not positive, else zero.
    """
    dy, x, slope = (Term(v, build) for v in (gradient, *op.operands))
    positive = x > 0
    small = dy * slope
    dx = dy.where(positive, small).value if is_wanted(x.value) else None
    if not is_wanted(slope.value):
        return [dx]
    chosen = x.constant(0).where(positive, dy * x)
    return [dx, build.sum_to(chosen.value, slope.value)]
