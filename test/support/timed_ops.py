"""
Layers that take as long as a test says: a dialect of its own with rules, gradients and
costs, registered from outside DistIR like those of any other compiler.

`timed.forward` keeps a residual of any size for its backward; its gradient is `timed.input`
(for the previous layer) and `timed.weight` (for its parameter). Seconds are per
micro-batch, whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    Float64Type,
    FloatAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
    f64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure

from distir.dialects.dist_attributes import NAME, ROLE, SCOPE
from distir.dialects.tensors import shape_of
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule
from distir.interpreters.simulator import Cost, CostContext, cost_function
from distir.sharding.rule import Factor, Linear, Rule, sharding_rule


@irdl_op_definition
class ForwardOp(IRDLOperation):
    """`x: [b, n], w: [n] -> y: [b, n], kept: [b, r]`"""

    name = "timed.forward"

    x = operand_def(TensorType)
    w = operand_def(TensorType)
    y = result_def(TensorType)
    kept = result_def(TensorType)
    seconds = prop_def(FloatAttr[Float64Type])
    input_seconds = prop_def(FloatAttr[Float64Type])
    weight_seconds = prop_def(FloatAttr[Float64Type])
    traits = traits_def(Pure())

    def __init__(
        self, x: SSAValue, w: SSAValue, seconds: tuple[float, float, float], kept: int
    ):
        names = ("seconds", "input_seconds", "weight_seconds")
        super().__init__(
            operands=[x, w],
            result_types=[x.type, TensorType(f32, [shape_of(x.type)[0], kept])],
            properties={
                name: FloatAttr(float(value), f64)
                for name, value in zip(names, seconds, strict=True)
            },
        )


class _Backward(IRDLOperation):
    dy = operand_def(TensorType)
    kept = operand_def(TensorType)
    gradient = result_def(TensorType)
    seconds = prop_def(FloatAttr[Float64Type])
    traits = traits_def(Pure())

    def __init__(
        self,
        dy: SSAValue,
        kept: SSAValue,
        result: Attribute,
        seconds: FloatAttr[Float64Type],
    ):
        super().__init__(
            operands=[dy, kept], result_types=[result], properties={"seconds": seconds}
        )


@irdl_op_definition
class InputOp(_Backward):
    """`dy: [b, n], kept: [b, r] -> dx: [b, n]`"""

    name = "timed.input"


@irdl_op_definition
class WeightOp(_Backward):
    """`dy: [b, n], kept: [b, r] -> dw: [n]`, summed over the batch."""

    name = "timed.weight"


@sharding_rule("timed.forward")
def forward_rule(op: Operation) -> Rule:
    """The rule of the forward: the batch is parallel, everything else whole."""
    b, n = shape_of(op.operands[0].type)
    r = shape_of(op.results[1].type)[1]
    factors = (Factor(b), Factor(n, "replicate"), Factor(r, "replicate"))
    return Rule(factors, (((0,), (1,)), ((1,),)), (((0,), (1,)), ((0,), (2,))))


@sharding_rule("timed.input")
def input_rule(op: Operation) -> Rule:
    """The rule of the input's gradient: the batch is parallel."""
    (b, n), (_, r) = (shape_of(v.type) for v in op.operands)
    factors = (Factor(b), Factor(n, "replicate"), Factor(r, "replicate"))
    return Rule(
        factors,
        (((0,), (1,)), ((0,), (2,))),
        (((0,), (1,)),),
        linear=(Linear(frozenset({0})),),
    )


@sharding_rule("timed.weight")
def weight_rule(op: Operation) -> Rule:
    """The rule of the weight's gradient: the batch is summed over."""
    (b, n), (_, r) = (shape_of(v.type) for v in op.operands)
    factors = (Factor(b, "reduction"), Factor(n, "replicate"), Factor(r, "replicate"))
    return Rule(
        factors,
        (((0,), (1,)), ((0,), (2,))),
        (((1,),),),
        linear=(Linear(frozenset({0})),),
    )


@cost_function("timed.forward", "timed.input", "timed.weight")
def seconds(context: CostContext) -> Cost:
    """The cost of the ops: the seconds that they declare."""
    attr = context.op.properties["seconds"]
    assert isinstance(attr, FloatAttr)
    return Cost(attr.value.data)


@gradient_rule("timed.forward")
def gradient(op: ForwardOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """Both gradients need the residual."""
    dy = gradients[0]
    assert dy is not None
    dx = build.add(InputOp(dy, op.kept, op.x.type, op.input_seconds))
    dw = build.add(WeightOp(dy, op.kept, op.w.type, op.weight_seconds))
    return [dx.results[0], dw.results[0]]


def timed_layers(
    layers: Sequence[tuple[float, float, float]],
    *,
    batch: int,
    width: int = 1,
    kept: int = 1,
) -> ModuleOp:
    """
    Returns a chain of layers with these seconds (forward, input's gradient, weight's
    gradient). The first layer's input needs a gradient too, so that all layers are alike.
    """
    from distir.dialects.onnx import operator

    x_type, w_type = TensorType(f32, [batch, width]), TensorType(f32, [width])
    block = Block(arg_types=[x_type, w_type, *[w_type] * len(layers)])
    roles = ["input", *["parameter"] * (len(layers) + 1)]
    names = ["x", "first", *(f"layers.{i}.weight" for i in range(len(layers)))]
    add = operator("Add").build_op(block.args[:2], [x_type])
    block.add_op(add)
    value: SSAValue = add.results[0]
    for i, times in enumerate(layers):
        op = ForwardOp(value, block.args[i + 2], times, kept)
        op.attributes[SCOPE] = StringAttr(f"layers.{i}")
        block.add_op(op)
        value = op.y
    block.add_op(ReturnOp(value))
    main = FuncOp("main", ([a.type for a in block.args], [value.type]), Region(block))
    main.arg_attrs = ArrayAttr(
        [
            DictionaryAttr({ROLE: StringAttr(role), NAME: StringAttr(name)})
            for role, name in zip(roles, names, strict=True)
        ]
    )
    return ModuleOp([main])
