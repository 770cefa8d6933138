"""
The registry of gradient rules.

A rule receives a forward op and the gradients of its results, and builds ops that
compute the gradients of the op's operands. A rule may use the forward op's operands and
results. The forward function of a layer must then keep these values as residuals.

```python
@onnx_gradient("Mul")
def multiply(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    a, b = op.operands
    return [
        build.sum_to(build.onnx("Mul", dy, b), a),
        build.sum_to(build.onnx("Mul", dy, a), b),
    ]
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    LocationAttr,
    TensorType,
    UnrankedTensorType,
    f32,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.constants import direct_constant
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import (
    constant_attr,
    element_type_of_dtype,
    numpy_dtype,
    onnx_element_type,
)
from distir.dialects.registries import Registry, name_of
from distir.dialects.tensors import known_shape
from distir.errors import DistIRError
from distir.interpreters.types import result_types
from distir.program import describe
from distir.program.unknown_sizes import origin_of_unknown

Gradients = Sequence[SSAValue | None]
"""The gradient of each result or operand. None means that no gradient flows to it."""

FLOATS = (Float16Type, BFloat16Type, Float32Type, Float64Type)


def is_differentiable(value: SSAValue) -> bool:
    """Whether `value` can have a gradient: only tensors of floats can."""
    return isinstance(value.type, TensorType) and isinstance(
        value.type.element_type, FLOATS
    )


def shape(value: SSAValue) -> tuple[int, ...]:
    """Returns the shape of `value`. Raises DistIRError if a size is unknown."""
    known = known_shape(value)
    if known is None:
        raise DistIRError(
            f"a gradient needs fixed sizes, but {_named(value)} has type {value.type}: "
            f"{origin_of_unknown(value)}"
        )
    return known


def _named(value: SSAValue) -> str:
    if isinstance(value.owner, Operation):
        return describe(value.owner)
    return f"an argument (%{value.name_hint})" if value.name_hint else "an argument"


class GradientBuilder:
    """
    Builds the ops of a backward pass, and appends them in order. All ops get the
    location of the forward op, and ops without a scope also get its scope.
    """

    def __init__(
        self,
        insert: Callable[[Operation], None],
        scope: Attribute | None,
        location: LocationAttr | None = None,
    ):
        self._insert = insert
        self._scope = scope
        self._location = location

    def add(self, op: Operation) -> Operation:
        """Appends an op of any dialect and returns it."""
        if self._scope is not None and SCOPE not in op.attributes:
            op.attributes[SCOPE] = self._scope
        if self._location is not None:
            op.location = self._location
        self._insert(op)
        return op

    def result(self, op: Operation) -> SSAValue:
        """Appends an op of any dialect and returns its first result."""
        return self.add(op).results[0]

    def onnx(
        self, name: str, *inputs: SSAValue | None, results: int = 1, **attributes: Any
    ) -> SSAValue:
        """
        Appends an ONNX op and returns its first result. Result types are inferred.
        """
        return self.onnx_results(name, *inputs, results=results, **attributes)[0]

    def onnx_results(
        self, name: str, *inputs: SSAValue | None, results: int = 1, **attributes: Any
    ) -> Sequence[SSAValue]:
        """Appends an ONNX op and returns its results. Result types are inferred."""
        unknown = [UnrankedTensorType(f32)] * results
        op = operator(name).build_op(inputs, unknown, attributes)
        types = result_types(
            op,
            [v.type for v in op.operands],
            [direct_constant(v) for v in op.operands],
        )
        for result, type_ in zip(op.results, types, strict=True):
            Rewriter.replace_value_with_new_type(result, type_)
        return self.add(op).results

    def matrix(self, value: SSAValue) -> SSAValue:
        """
        Returns `value` as a matrix: all dimensions but the last become the rows.
        """
        *rows, width = shape(value)
        if len(rows) == 1:
            return value
        return self.onnx("Reshape", value, self.integers([prod(rows), width]))

    def transposed(self, value: SSAValue) -> SSAValue:
        """Appends an `onnx.Transpose` of a matrix and returns its result."""
        return self.onnx("Transpose", value, perm=[1, 0])

    def constant(self, values: npt.ArrayLike) -> SSAValue:
        """Appends an `onnx.Constant` and returns its result."""
        array = np.asarray(values)
        type_ = TensorType(element_type_of_dtype(array.dtype), array.shape)
        op = operator("Constant").build_op([], [type_], {"value": constant_attr(array)})
        return self.add(op).results[0]

    def integers(self, values: Sequence[int]) -> SSAValue:
        """
        Appends a constant of 64-bit integers, such as a shape or axes, and returns its
        result.
        """
        return self.constant(np.array(values, dtype=np.int64))

    def scalar(self, value: float, like: SSAValue) -> SSAValue:
        """
        Appends a scalar constant with the element type of `like`, and returns its
        result.
        """
        return self.array(value, like)

    def array(self, values: npt.ArrayLike, like: SSAValue) -> SSAValue:
        """
        Appends a constant with the element type of `like`, and returns its result.
        """
        assert isinstance(like.type, TensorType)
        return self.constant(np.array(values, numpy_dtype(like.type.element_type)))

    def sum_to(self, gradient: SSAValue, target: SSAValue) -> SSAValue:
        """
        Returns `gradient` summed over the dimensions along which `target` was
        broadcast. The result has the shape of `target`.
        """
        have, want = shape(gradient), shape(target)
        if have == want:
            return gradient
        extra = len(have) - len(want)
        axes = [
            i for i in range(len(have)) if i < extra or (want[i - extra] == 1 < have[i])
        ]
        if axes:
            gradient = self.onnx("ReduceSum", gradient, self.integers(axes), keepdims=1)
        return self.reshaped(gradient, want)

    def cast(self, value: SSAValue, like: SSAValue) -> SSAValue:
        """
        Returns `value` cast to the element type of `like`. The op is a Cast and not a
        CastLike, so that `like` is not an operand and need not be kept for the backward
        pass.
        """
        assert isinstance(value.type, TensorType) and isinstance(like.type, TensorType)
        if value.type.element_type == like.type.element_type:
            return value
        to = onnx_element_type(like.type.element_type)
        return self.onnx("Cast", value, to=to)

    def reshape_like(self, value: SSAValue, target: SSAValue) -> SSAValue:
        """Returns `value` in the shape of `target`."""
        return self.reshaped(value, shape(target))

    def reshaped(self, value: SSAValue, sizes: tuple[int, ...]) -> SSAValue:
        """Returns `value` in the shape `sizes`."""
        if shape(value) == sizes:
            return value
        # Without allowzero, 0 would be the size of the operand's dimension.
        zeros = {"allowzero": 1} if 0 in sizes else {}
        return self.onnx("Reshape", value, self.integers(sizes), **zeros)


GradientRule = Callable[[Any, Gradients, GradientBuilder], Gradients]

gradient_rule = Registry[GradientRule]("distir.gradients.rules")
"""
Registers the gradient rule of the ops with the given names.

A rule is called with the op, the gradients of its results (not all None) and a builder.
It returns one gradient per operand, in the order of `op.operands`. Each gradient has
its operand's type, or is None if no gradient flows to the operand. A rule raises
DistIRError for a form of the op that it cannot handle.
"""


TrainingForm = Callable[[OnnxOp], Operation | None]

training_form = Registry[TrainingForm]("distir.gradients.rules")
"""
Registers the training form of the ONNX operators with the given names.

A training form is an op with the same first results and, as further results, the values
that the gradient needs, such as the statistics of a norm. The registered function takes
an operator and returns the new op, or None for a form of the operator that has no such
op.
"""


def take_training_forms(block: Block, active: dict[SSAValue, None]) -> None:
    """
    Replaces each operator of `block` through which gradients flow by its training form,
    if it has one. `active` holds the values that have gradients; the results of new ops
    are added to it.
    """
    for op in list(block.ops):
        if not isinstance(op, OnnxOp) or not any(r in active for r in op.results):
            continue
        form = training_form.get(op.name)
        new = None if form is None else form(op)
        if new is None:
            continue
        new.attributes.update(op.attributes)
        block.insert_op_before(new, op)
        for before, after in zip(op.results, new.results, strict=False):
            after.name_hint = before.name_hint
            before.replace_all_uses_with(after)
            if before in active:
                del active[before]
                active[after] = None
        block.erase_op(op)


SingleRule = Callable[[OnnxOp, SSAValue, GradientBuilder], Gradients]


def onnx_gradient(*names: str) -> Callable[[SingleRule], SingleRule]:
    """
    Returns a decorator that registers a gradient rule for the ONNX operators `names`
    (without `onnx.`). Only the first result of these operators may have a gradient. The
    rule takes this gradient, and may leave out the entries at the end of its list that
    are None.
    """

    def register(function: SingleRule) -> SingleRule:
        def rule(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
            assert gradients[0] is not None
            found = function(op, gradients[0], build)
            return [*found, *[None] * (len(op.operands) - len(found))]

        gradient_rule(*(f"onnx.{name}" for name in names))(rule)
        return function

    return register


def registered_rules() -> frozenset[str]:
    """Returns the names of all ops that have a gradient rule."""
    return frozenset(gradient_rule.entries)


def gradients_of(
    op: Operation, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Returns one entry per operand of `op`: the operand's gradient, or None. Raises
    DistIRError if the op has no rule, or if the rule returns a gradient of a wrong
    type.
    """
    rule = gradient_rule.of(op)
    if rule is None:
        raise DistIRError(
            f"{describe(op)} has no gradient rule; let PyTorch differentiate the model "
            f"instead (distir.frontends.torch.training.import_training_step), or "
            f"register a rule: distir.extension.register_op({name_of(op)!r}, "
            f"OpSupport(gradient=...))"
        )
    found = rule(op, gradients, build)
    if len(found) != len(op.operands):
        raise DistIRError(
            f"{describe(op)}: its gradient rule gives {len(found)} gradients for "
            f"{len(op.operands)} operands; return one for each, None where there is none"
        )
    for i, (value, gradient) in enumerate(zip(op.operands, found, strict=True)):
        if gradient is not None and gradient.type != value.type:
            raise DistIRError(
                f"{describe(op)}: its gradient rule gives {gradient.type} for operand "
                f"{i} of type {value.type}"
            )
    return found
