"""Traces Python functions, without shapes, into patterns of ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    f32,
    f64,
    i64,
)
from xdsl.dialects.transform import AnyValueType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from distir.dialects.schedule import ConstantOp, FoundOp, NodeOp
from distir.errors import DistIRError
from distir.program import name_hint

_NAMES: Mapping[str, str] = {
    "abs": "Abs",
    "add": "Add",
    "cos": "Cos",
    "div": "Div",
    "erf": "Erf",
    "exp": "Exp",
    "isnan": "IsNaN",
    "log": "Log",
    "matmul": "MatMul",
    "bmm": "MatMul",
    "maximum": "Max",
    "minimum": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "pow": "Pow",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "sin": "Sin",
    "softplus": "Softplus",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "tanh": "Tanh",
    "truediv": "Div",
    "where": "Where",
}
"""
The ONNX operator for each function of PyTorch or `operator` that is exactly one
operator without attributes.
"""


class _Tracer:
    """Builds the pattern of one function."""

    def __init__(self, count: int):
        self.block = Block(arg_types=[AnyValueType()] * count)
        self.values: dict[object, SSAValue] = {}

    def node(
        self,
        name: str,
        *inputs: Any,
        having: Mapping[str, Attribute] | None = None,
        swaps: Sequence[int] = (),
    ) -> SSAValue:
        """
        Adds an op to the pattern and returns its result. Numbers in `inputs` become
        constants. `having` are attributes that a matching op must have; `swaps` are two
        dimensions that a matching transpose must exchange.
        """
        attributes: dict[str, Attribute] = {}
        if having:
            attributes["with"] = DictionaryAttr(dict(having))
        if swaps:
            attributes["swaps"] = ArrayAttr([IntegerAttr(dim, i64) for dim in swaps])
        op = NodeOp.create(
            operands=[self.value(value) for value in inputs],
            result_types=[AnyValueType()],
            properties={"op": StringAttr(f"onnx.{name}")},
            attributes=attributes,
        )
        return self._add(op)

    def value(self, value: Any) -> SSAValue:
        """
        Returns the value in the pattern for `value`, an argument of a call in the
        traced function. A number becomes a constant. Raises DistIRError if `value` is
        neither a number nor a traced value.
        """
        if isinstance(value, SSAValue):
            return value
        if isinstance(value, bool | int | float):
            op = ConstantOp.create(
                properties={"value": FloatAttr(float(value), f64)},
                result_types=[AnyValueType()],
            )
            return self._add(op)
        if value in self.values:
            return self.values[value]
        raise DistIRError(
            f"a pattern cannot hold {value!r}; give it numbers and values"
        )

    def _add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]


_Form = Callable[..., SSAValue]


def _gelu(t: _Tracer, x: Any, approximate: str = "none") -> SSAValue:
    return t.node("Gelu", x, having={"approximate": StringAttr(approximate)})


def _silu(t: _Tracer, x: Any, inplace: bool = False) -> SSAValue:
    return t.node("Mul", x, t.node("Sigmoid", x))


def _softmax(t: _Tracer, x: Any, dim: int = -1, **_: Any) -> SSAValue:
    return t.node("Softmax", x, having={"axis": IntegerAttr(dim, i64)})


def _dropout(t: _Tracer, x: Any, *_: Any, **__: Any) -> SSAValue:
    return t.node("Dropout", x)


def _linear(t: _Tracer, x: Any, weight: Any, bias: Any = None) -> SSAValue:
    product = t.node("MatMul", x, t.node("Transpose", weight, swaps=(-1, -2)))
    return product if bias is None else t.node("Add", product, bias)


def _layer_norm(
    t: _Tracer, x: Any, shape: Any, weight: Any, bias: Any = None, eps: float = 1e-5
) -> SSAValue:
    inputs = [x, weight] if bias is None else [x, weight, bias]
    return t.node(
        "LayerNormalization", *inputs, having={"epsilon": FloatAttr(eps, f32)}
    )


def _cross_entropy(
    t: _Tracer,
    scores: Any,
    labels: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> SSAValue:
    if label_smoothing or any(x is not None for x in (weight, size_average, reduce)):
        raise DistIRError(
            "a pattern's cross_entropy has no weight, label_smoothing, size_average or reduce"
        )
    having = {
        "reduction": StringAttr(reduction),
        "ignore_index": IntegerAttr(ignore_index, i64),
    }
    return t.node("SoftmaxCrossEntropyLoss", scores, labels, having=having)


def _attention(
    t: _Tracer,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> SSAValue:
    inputs = [query, key, value] + ([] if attn_mask is None else [attn_mask])
    having = {"is_causal": IntegerAttr(int(is_causal), i64)}
    return t.node("Attention", *inputs, having=having)


def _transpose(t: _Tracer, x: Any, first: int, second: int) -> SSAValue:
    return t.node("Transpose", x, swaps=(first, second))


_FORMS: Mapping[str, _Form] = {
    "cross_entropy": _cross_entropy,
    "gelu": _gelu,
    "silu": _silu,
    "softmax": _softmax,
    "dropout": _dropout,
    "linear": _linear,
    "layer_norm": _layer_norm,
    "scaled_dot_product_attention": _attention,
    "transpose": _transpose,
}
"""
Functions that add the ops for a call of PyTorch to a pattern, for calls that are an
ONNX operator with attributes, or several operators.
"""


def traced(function: Callable[..., Any]) -> Region:
    """
    Returns the pattern that a Python function computes, as the region of
    `schedule.find`. The arguments of the function stand for any values. Raises
    DistIRError if the function cannot be traced.
    """
    try:
        from torch import fx
    except ImportError as error:
        raise DistIRError(
            "a pattern that is a Python function is traced with PyTorch, which is not "
            "installed; write the pattern as ops of `schedule.find`"
        ) from error
    # Functions that fx cannot follow, and functions with mistakes, may raise anything.
    try:
        graph = fx.symbolic_trace(function).graph
    except Exception as error:
        raise DistIRError(
            f"the pattern cannot be traced ({type(error).__name__}: {error}); write a "
            f"function of values, without conditions on them"
        ) from error
    nodes = list(graph.nodes)
    tracer = _Tracer(sum(node.op == "placeholder" for node in nodes))
    arguments = iter(tracer.block.args)
    for node in nodes:
        if node.op == "placeholder":
            tracer.values[node] = value = next(arguments)
            value.name_hint = name_hint(str(node.target))
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node):
                raise DistIRError("a pattern computes one value; return that")
            found = FoundOp.create(operands=[tracer.value(node.args[0])])
            tracer.block.add_op(found)
        else:
            tracer.values[node] = _called(tracer, node)
    return Region(tracer.block)


def op(name: str, *inputs: Any, **attributes: int | float | str) -> Any:
    """
    Stands for the ONNX operator `name` in a pattern. A matching op must have the given
    attributes: `s.find(lambda x, w: op("Gemm", x, w, transB=1))`.
    """
    from torch import fx

    tracers = [value.tracer for value in inputs if isinstance(value, fx.Proxy)]
    if not tracers:
        raise DistIRError(f"op({name!r}, ...) is part of a pattern, of its values")
    return tracers[0].create_proxy("call_function", op, (name, *inputs), attributes)


def _onnx_attribute(value: int | float | str) -> Attribute:
    if isinstance(value, str):
        return StringAttr(value)
    return IntegerAttr(value, i64) if isinstance(value, int) else FloatAttr(value, f32)


def _called(tracer: _Tracer, node: Any) -> SSAValue:
    """
    Adds the ops for a call in the traced function to the pattern, and returns their
    result. Raises DistIRError for a call that patterns do not support.
    """
    if node.target is op:
        name, *inputs = node.args
        having = {key: _onnx_attribute(value) for key, value in node.kwargs.items()}
        values = [_looked_up(tracer, value) for value in inputs]
        return tracer.node(name, *values, having=having)
    name = node.target if isinstance(node.target, str) else node.target.__name__
    name = name.strip("_")
    written = ", ".join(sorted({*_NAMES, *_FORMS}))
    # In a pattern, an in-place operation counts as the same one out of place.
    if node.op not in ("call_function", "call_method") or not (
        name in _NAMES or name in _FORMS
    ):
        raise DistIRError(
            f"a pattern cannot hold {name!r}; it may have {written}, operators of numbers "
            f"and values, or be written as ops of `schedule.find`"
        )
    args = [_looked_up(tracer, value) for value in node.args]
    options = {key: _looked_up(tracer, value) for key, value in node.kwargs.items()}
    try:
        if name in _NAMES:
            if options.keys() - {"inplace"}:
                raise DistIRError(
                    f"the pattern's call of {name!r} has options ({', '.join(options)}), "
                    f"which a pattern cannot hold"
                )
            return tracer.node(_NAMES[name], *args)
        return _FORMS[name](tracer, *args, **options)
    except TypeError as error:
        raise DistIRError(
            f"the pattern's call of {name!r} cannot be read: {error}"
        ) from error


def _looked_up(tracer: _Tracer, value: Any) -> Any:
    from torch import fx

    return tracer.values[value] if isinstance(value, fx.Node) else value
