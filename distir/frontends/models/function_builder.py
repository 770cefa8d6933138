"""Appends ops and arguments to functions, for the builders of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, TensorType, i1, i64
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue, TypeAttribute

from distir.dialects.dist_attributes import INITIAL, NAME, ROLE, SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import FLOAT_TYPES, numpy_dtype
from distir.dialects.train_ops.dropout import DropoutOp
from distir.errors import DistIRError, one_of
from distir.program import name_hint, set_argument_attributes

Shape = Sequence[int]


class Parameter(NamedTuple):
    """
    A parameter or another kind of weight of a layer. `initial` and `role` are the
    values of the attributes `dist.initial` and `dist.role`. `element` is the element
    type; None means the model's element type.
    """

    name: str
    shape: Shape
    initial: str | None = None
    role: str = "parameter"
    element: TypeAttribute | None = None


def norm_parameters(name: str, width: int) -> list[Parameter]:
    """
    Returns the parameters of the layer norm `name` over `width` features: scale and
    bias.
    """
    scale = Parameter(f"{name}.weight", (width,), "ones")
    return [scale, Parameter(f"{name}.bias", (width,))]


@dataclass(frozen=True)
class Layer:
    """
    The function of a layer, and the parameters that each call passes to the function,
    in order.
    """

    function: FuncOp
    parameters: Sequence[Parameter]


class FunctionBuilder:
    """
    Appends ops to one function. `scope` is the scope of the ops that are added next.
    `dropout` is the ratio and the seed of dropout.
    """

    def __init__(self, element: TypeAttribute, dropout: tuple[float, int] = (0.0, 0)):
        self.element = element
        self.ratio, self.seed = dropout
        self.dtype = numpy_dtype(element)
        self.scope = ""
        self.block = Block()
        self.attributes: list[dict[str, Attribute]] = []
        # Types are compared and built often; one object per type keeps both cheap.
        self.types: dict[tuple[TypeAttribute, tuple[int, ...]], TensorType[Any]] = {}

    def type(
        self, shape: Shape, element: TypeAttribute | None = None
    ) -> TensorType[Any]:
        key = (element or self.element, tuple(shape))
        if key not in self.types:
            self.types[key] = TensorType(*key)
        return self.types[key]

    def argument(
        self,
        name: str,
        shape: Shape,
        *,
        role: str | None = "parameter",
        element: TypeAttribute | None = None,
    ) -> SSAValue:
        """
        Adds an argument at the end and returns it. An argument without a role is an
        intermediate value.
        """
        value = self.block.insert_arg(self.type(shape, element), len(self.block.args))
        value.name_hint = name_hint(name.replace(".*", ""))
        attributes: dict[str, Attribute] = {}
        if role is not None:
            attributes = {ROLE: ROLE.attr(role), NAME: NAME.attr(name)}
        self.attributes.append(attributes)
        return value

    def parameters(self, scope: str, wanted: Sequence[Parameter]) -> list[SSAValue]:
        """
        Adds an argument for each weight in `wanted`, and returns the arguments. `scope`
        is the path of the module that has the weights ("" for the model).
        """
        found: list[SSAValue] = []
        for name, shape, initial, role, element in wanted:
            path = f"{scope}.{name}" if scope else name
            found.append(self.argument(path, shape, role=role, element=element))
            if initial is not None:
                self.attributes[-1][INITIAL] = INITIAL.attr(initial)
        return found

    def ops(
        self,
        name: str,
        inputs: Sequence[SSAValue | None],
        shapes: Sequence[Shape],
        **attributes: Any,
    ) -> Sequence[SSAValue]:
        """
        Adds an op with one result per shape in `shapes`, and returns the results. An
        entry of `inputs` is None if the input is omitted.
        """
        return self._append(name, inputs, [self.type(s) for s in shapes], attributes)

    def op(
        self,
        name: str,
        inputs: Sequence[SSAValue | None],
        shape: Shape,
        element: TypeAttribute | None = None,
        **attributes: Any,
    ) -> SSAValue:
        """
        Adds an op with one result of shape `shape`, and returns the result. An entry of
        `inputs` is None if the input is omitted.
        """
        return self._append(name, inputs, [self.type(shape, element)], attributes)[0]

    def results(
        self,
        name: str,
        inputs: Sequence[SSAValue | None],
        types: Sequence[tuple[Shape, TypeAttribute | None]],
        **attributes: Any,
    ) -> Sequence[SSAValue]:
        """
        Adds an op with one result per entry of `types`, a shape and an element type,
        and returns the results. An element type that is None is the model's.
        """
        return self._append(name, inputs, [self.type(*t) for t in types], attributes)

    def _append(
        self,
        name: str,
        inputs: Sequence[SSAValue | None],
        types: Sequence[Attribute],
        attributes: dict[str, Any],
    ) -> Sequence[SSAValue]:
        scope: dict[str, Attribute] | None = None
        if self.scope:
            scope = {SCOPE: SCOPE.attr(self.scope)}
        op = operator(name).build_op(inputs, types, attributes, scope)
        self.block.add_op(op)
        return op.results

    def add(self, op: Operation) -> Sequence[SSAValue]:
        """
        Appends `op`, of any dialect, in the current scope, and returns its results.
        """
        op.attributes[SCOPE] = SCOPE.attr(self.scope)
        self.block.add_op(op)
        return op.results

    def constant(self, array: np.ndarray[Any, Any]) -> SSAValue:
        element = i64 if array.dtype == np.int64 else self.element
        return self.op("Constant", [], array.shape, element, value=array)

    def causal_mask(self, seq: int) -> SSAValue:
        """
        Adds a causal mask [seq, seq] and returns it. The mask is 0 where the key is at
        or before the query, and the lowest finite number elsewhere.
        """
        import ml_dtypes

        ends = [self.constant(np.array(v, np.int64)) for v in (0, seq, 1)]
        positions = self.op("Range", ends, (seq,), element=i64)
        column = self.constant(np.array([1], np.int64))
        queries = self.op("Unsqueeze", [positions, column], (seq, 1), element=i64)
        seen = self.op("LessOrEqual", [positions, queries], (seq, seq), element=i1)
        zero = self.constant(np.array(0, self.dtype))
        lowest = self.constant(np.array(ml_dtypes.finfo(self.dtype).min, self.dtype))
        return self.op("Where", [seen, zero, lowest], (seq, seq))

    def layer_norm(
        self, value: SSAValue, parameters: Sequence[SSAValue], shape: Shape
    ) -> SSAValue:
        return self.op(
            "LayerNormalization", [value, *parameters], shape, axis=-1, epsilon=1e-5
        )

    def dropout(
        self, value: SSAValue, counter: SSAValue | None, stream: int
    ) -> SSAValue:
        """
        Applies dropout to `value` and returns the result. Returns `value` itself if
        `counter` is None.
        """
        if counter is None:
            return value
        op = DropoutOp(value, counter, ratio=self.ratio, seed=self.seed, stream=stream)
        op.attributes[SCOPE] = SCOPE.attr(self.scope)
        self.block.add_op(op)
        return op.y

    def call_counter(self, step: SSAValue, calls: int, index: int) -> SSAValue:
        """
        Returns a number that is different for each call in each step: `step` times
        `calls`, plus `index`.
        """
        count, own = (self.constant(np.array(n, np.int64)) for n in (calls, index))
        before = self.op("Mul", [step, count], (), i64)
        return self.op("Add", [before, own], (), i64)

    def call(
        self, callee: FuncOp, scope: str, arguments: Sequence[SSAValue]
    ) -> SSAValue:
        """Adds a call of a function, and returns its first result."""
        return self.calls(callee, scope, arguments)[0]

    def calls(
        self, callee: FuncOp, scope: str, arguments: Sequence[SSAValue]
    ) -> Sequence[SSAValue]:
        """Adds a call of a function, and returns its results."""
        results = callee.function_type.outputs.data
        call = CallOp(callee.sym_name.data, arguments, results)
        call.attributes[SCOPE] = SCOPE.attr(scope)
        self.block.add_op(call)
        return call.results

    def finish(
        self, name: str, results: Sequence[SSAValue], names: Sequence[str] = ()
    ) -> FuncOp:
        """
        Returns the finished function, which returns `results`. The function is private
        unless `names`, the source names of its results, are given.
        """
        self.block.add_op(ReturnOp(*results))
        function = FuncOp(
            name,
            (self.block.arg_types, [r.type for r in results]),
            Region(self.block),
            None if names else "private",
        )
        set_argument_attributes(function, self.attributes)
        if names:
            function.res_attrs = ArrayAttr(
                [DictionaryAttr({NAME: NAME.attr(n)}) for n in names]
            )
        return function


def layer_arguments(
    main: FunctionBuilder,
    scope: str,
    layers: Sequence[Sequence[Parameter]],
) -> list[list[SSAValue]]:
    """
    Adds arguments to `@main` for the parameters of each layer, and returns them by
    layer.
    """
    return [
        main.parameters(f"{scope}.{index}", parameters)
        for index, parameters in enumerate(layers)
    ]


def check_sizes(**sizes: int) -> None:
    """Raises DistIRError if a size is not positive."""
    for name, size in sizes.items():
        if size < 1:
            raise DistIRError(f"{name} is {size}; a model needs at least 1")


def element_type(dtype: str) -> TypeAttribute:
    """
    Returns the element type called `dtype`. Raises DistIRError for an unknown name.
    """
    return FLOAT_TYPES[one_of("dtype", dtype, FLOAT_TYPES)]
