"""
Formulas: the meaning of an op, written once as a function of tensors.

    @staticmethod
    def formula(dy: Expr, y: Expr, *, axis: int) -> Expr:
        return y * (dy - (dy * y).sum(axis, keepdims=True))

The function is called with expressions, which have a shape and an element type but no
values. Its results are expressions, too; each one records the function and the inputs
of its computation. This module derives the types of results. The layers above evaluate
a formula on arrays (`distir.interpreters.train.formulas`) and derive its sharding rule
(`distir.sharding.formula_rule`).

Python numbers take the type of the other operand, a tensor, as in NumPy and PyTorch.
Tensors of 16-bit floats are computed in 32 bits and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import Float32Type, Float64Type, TensorType, f32, f64, i1
from xdsl.ir import Attribute

from distir.dialects.tensors import tensor_of

Shape = tuple[int, ...]


class FormulaError(ValueError):
    """
    Raised if a formula cannot be applied because the shapes of its tensors do not fit.
    """


@dataclass(frozen=True, eq=False)
class Expr:
    """
    A tensor in a formula: an operand, or the result of `function` applied to `inputs`,
    which are expressions and Python numbers. `element` is None for an operand that is
    read as a Python number, and for results computed from such numbers only.

    - `axes`: the dimensions that the function reduces, adds with size 1, or divides;
      None for all;
    - `keepdims`: whether a reduction keeps its dimensions, with size 1;
    - `parts`: the number of parts that a dimension is divided into.
    """

    function: str
    inputs: tuple[Expr | float, ...]
    shape: Shape
    element: Attribute | None
    axes: tuple[int, ...] | None = None
    keepdims: bool = False
    parts: int = 1

    @property
    def type(self) -> TensorType[Any]:
        """The type of the tensor."""
        assert self.element is not None
        return tensor_of(self.element, self.shape)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The inputs that are expressions."""
        return tuple(value for value in self.inputs if isinstance(value, Expr))

    def __add__(self, other: Expr | float) -> Expr:
        return _elementwise("add", self, other)

    def __radd__(self, other: float) -> Expr:
        return _elementwise("add", other, self)

    def __sub__(self, other: Expr | float) -> Expr:
        return _elementwise("subtract", self, other)

    def __rsub__(self, other: float) -> Expr:
        return _elementwise("subtract", other, self)

    def __mul__(self, other: Expr | float) -> Expr:
        return _elementwise("multiply", self, other)

    def __rmul__(self, other: float) -> Expr:
        return _elementwise("multiply", other, self)

    def __truediv__(self, other: Expr | float) -> Expr:
        return _elementwise("divide", self, other)

    def __rtruediv__(self, other: float) -> Expr:
        return _elementwise("divide", other, self)

    def __pow__(self, other: Expr | float) -> Expr:
        return _elementwise("power", self, other)

    def __rpow__(self, other: float) -> Expr:
        return _elementwise("power", other, self)

    def __neg__(self) -> Expr:
        return _elementwise("negative", self)

    def __gt__(self, other: Expr | float) -> Expr:
        return _elementwise("greater", self, other, element=i1)

    def sum(
        self, axes: int | Sequence[int] | None = None, *, keepdims: bool = False
    ) -> Expr:
        """Returns the sum over the dimensions `axes`, by default over all."""
        return self._reduced("sum", axes, keepdims)

    def mean(self, axes: int | Sequence[int], *, keepdims: bool = False) -> Expr:
        """Returns the mean over the dimensions `axes`."""
        return self._reduced("mean", axes, keepdims)

    def max(self, axes: int | Sequence[int], *, keepdims: bool = False) -> Expr:
        """
        Returns the maximum over the dimensions `axes`; minus infinity if there are no
        elements.
        """
        return self._reduced("max", axes, keepdims)

    def _reduced(
        self, function: str, axes: int | Sequence[int] | None, keepdims: bool
    ) -> Expr:
        rank = len(self.shape)
        if axes is not None:
            given = (axes,) if isinstance(axes, int) else axes
            for axis in given:
                if not -rank <= axis < rank:
                    raise FormulaError(
                        f"axis {axis} is outside of a tensor with {rank} dimensions"
                    )
            axes = tuple(axis % rank for axis in given)
        over = range(rank) if axes is None else axes
        shape = [1 if d in over else n for d, n in enumerate(self.shape)]
        if not keepdims:
            shape = [n for d, n in enumerate(self.shape) if d not in over]
        return Expr(function, (self,), tuple(shape), self.element, axes, keepdims)

    def expanded(self, *axes: int) -> Expr:
        """
        Returns the tensor with new dimensions of size 1, which are at `axes` in the
        result.
        """
        rank = len(self.shape) + len(axes)
        at = tuple(sorted(axis % rank for axis in axes))
        sizes = iter(self.shape)
        shape = tuple(1 if d in at else next(sizes) for d in range(rank))
        return Expr("expand", (self,), shape, self.element, at)

    def divided(self, axis: int, parts: int) -> Expr:
        """
        Returns the tensor with dimension `axis` divided into two: the part, then the
        position within the part. Raises FormulaError if the size does not divide into
        `parts` parts.
        """
        size = self.shape[axis]
        if size >= 0 and size % parts:
            raise FormulaError(f"{size} elements cannot be divided into {parts} parts")
        inner = size if size < 0 else size // parts
        shape = (*self.shape[:axis], parts, inner, *self.shape[axis + 1 :])
        return Expr("divide_axis", (self,), shape, self.element, (axis,), parts=parts)

    def joined(self, axis: int) -> Expr:
        """
        Returns the tensor with dimension `axis` and the next one merged. Undoes
        `divided`.
        """
        parts, inner = self.shape[axis : axis + 2]
        size = inner if inner < 0 else parts * inner
        shape = (*self.shape[:axis], size, *self.shape[axis + 2 :])
        return Expr("join_axes", (self,), shape, self.element, (axis,))

    def chosen(self, labels: Expr) -> Expr:
        """
        Returns one element of the last dimension of this tensor [..., n] for each label
        of `labels` [...]: the element with the label as its index. The result is 0 for
        labels outside of 0 .. n-1.
        """
        shape = broadcast(self.shape[:-1], labels.shape)
        return Expr("choose", (self, labels), shape, self.element)

    def wide(self) -> Expr:
        """
        Returns the tensor converted to the type in which sums are computed: f64 for
        f64, else f32.
        """
        return Expr("cast", (self,), self.shape, f64 if self.element == f64 else f32)

    def like(self, other: Expr) -> Expr:
        """Returns the tensor converted to the element type of `other`."""
        return Expr("cast", (self,), self.shape, other.element)

    def number(self) -> Expr:
        """
        Returns this scalar as a Python number, whose type does not affect results.
        """
        return Expr("number", (self,), (), None)


def exp(x: Expr) -> Expr:
    """Returns the exponentials of a tensor."""
    return _elementwise("exp", x)


def log(x: Expr) -> Expr:
    """Returns the natural logarithms of a tensor."""
    return _elementwise("log", x)


def sqrt(x: Expr) -> Expr:
    """Returns the square roots of a tensor."""
    return _elementwise("sqrt", x)


def tanh(x: Expr) -> Expr:
    """Returns the hyperbolic tangents of a tensor."""
    return _elementwise("tanh", x)


def erf(x: Expr) -> Expr:
    """Returns the error function of a tensor."""
    return _elementwise("erf", x)


def absolute(x: Expr) -> Expr:
    """Returns the absolute values of a tensor."""
    return _elementwise("absolute", x)


def minimum(x: Expr, other: Expr | float) -> Expr:
    """
    Returns the smaller elements of two tensors. If one of two elements is NaN, the
    result is NaN.
    """
    return _elementwise("minimum", x, other)


def maximum(x: Expr, other: Expr | float) -> Expr:
    """
    Returns the larger elements of two tensors. If one of two elements is NaN, the
    result is NaN.
    """
    return _elementwise("maximum", x, other)


def sign(x: Expr) -> Expr:
    """Returns the signs of a tensor: -1, 0 or 1."""
    return _elementwise("sign", x)


def differs(x: Expr, other: Expr | float) -> Expr:
    """Returns, element by element, whether `x` differs from `other`."""
    return _elementwise("not_equal", x, other, element=i1)


def where(condition: Expr, x: Expr | float, other: Expr | float) -> Expr:
    """
    Returns the elements of `x` where `condition` holds, and the elements of `other`
    elsewhere.
    """
    element = _widest([v for v in (x, other) if isinstance(v, Expr)])
    return _elementwise("where", condition, x, other, element=element)


def one_hot(labels: Expr, like: Expr) -> Expr:
    """
    Returns truth values in the shape of `labels` [...] plus the last dimension of
    `like` [..., n]: true at the index equal to the label. For a label outside of 0 ..
    n-1, all are false.
    """
    shape = (*labels.shape, like.shape[-1])
    return Expr("one_hot", (labels, like), shape, i1)


def _elementwise(
    function: str, *inputs: Expr | float, element: Attribute | None = None
) -> Expr:
    exprs = [value for value in inputs if isinstance(value, Expr)]
    shape = broadcast(*(expr.shape for expr in exprs))
    return Expr(function, inputs, shape, element or _widest(exprs))


def broadcast(*shapes: Shape) -> Shape:
    """
    Returns the shape that `shapes` broadcast to. Unknown sizes are negative. Raises
    FormulaError if the shapes do not broadcast.
    """
    first, *others = shapes
    if all(shape == first for shape in others):
        return first
    rank = max(map(len, shapes))
    sizes: list[int] = []
    for column in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        known = {n for n in column if n >= 0 and n != 1}
        if len(known) > 1:
            raise FormulaError(f"shapes {', '.join(str([*s]) for s in shapes)} differ")
        sizes.append(known.pop() if known else min(column))
    return tuple(sizes)


def _widest(exprs: Sequence[Expr]) -> Attribute | None:
    """
    Returns the widest element type of `exprs`, which is the type of a result computed
    from them. Returns None if no expression has an element type.
    """
    found: Attribute | None = None
    for expr in exprs:
        if found is None or found == i1 or isinstance(expr.element, Float64Type):
            found = expr.element or found
        elif isinstance(expr.element, Float32Type) and not isinstance(
            found, Float64Type
        ):
            found = expr.element
    return found


@dataclass(frozen=True, eq=False)
class Formula:
    """
    A formula written for one op: the expressions of the operands, whose types are
    known, and the expressions of the results.
    """

    operands: tuple[Expr, ...]
    results: tuple[Expr, ...]
    steps: tuple[Expr, ...] = field(init=False)
    """All expressions except operands, each one after its inputs."""

    def __post_init__(self) -> None:
        seen: set[Expr] = set()
        ordered = (expr for r in self.results for expr in _ordered(r, seen))
        steps = tuple(expr for expr in ordered if expr.function != "operand")
        object.__setattr__(self, "steps", steps)


def operand(shape: Shape, element: Attribute) -> Expr:
    """Returns an operand of a formula with the given shape and element type."""
    return Expr("operand", (), shape, element)


def _ordered(expr: Expr, seen: set[Expr]) -> Iterator[Expr]:
    if expr not in seen:
        seen.add(expr)
        for value in expr.expressions:
            yield from _ordered(value, seen)
        yield expr
