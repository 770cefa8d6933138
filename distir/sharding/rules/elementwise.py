"""
Sharding rules of ops that compute each element from the elements of several operands at
the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    TensorType,
)
from xdsl.ir import Attribute, Operation

from distir.dialects.onnx_ops.elementwise import OPERATORS
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import element_type, shape_of
from distir.sharding.rule import Linear, Rule, RuleFunction
from distir.sharding.rules.builder import (
    ANY,
    SUM,
    RuleBuilder,
    constant_operand,
    onnx_rule,
)

Linearity = Literal["", "all", "each", "first"]
"""
The operands in which an op is linear, so that partial sums pass through it: none (""),
all together, each by itself, or the first.
"""

_SETS: Mapping[Linearity, Callable[[int], tuple[tuple[int, ...], ...]]] = {
    "": lambda count: (),
    "all": lambda count: (tuple(range(count)),),
    "each": lambda count: tuple((i,) for i in range(count)),
    "first": lambda count: ((0,),),
}


def broadcast(
    op: Operation,
    linear: tuple[tuple[int, ...], ...] = (),
    reductions: frozenset[str] = SUM,
) -> Rule:
    """
    Returns the sharding rule of an elementwise op whose operands broadcast. Each
    dimension of the result is a factor. A dimension of size 1 that is stretched has no
    factor.
    """
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.results[0]))
    inputs = {
        op.operand_position(index) if isinstance(op, OnnxOp) else index: (
            builder.aligned(operand, dims)
        )
        for index, operand in enumerate(op.operands)
    }
    return builder.rule(
        inputs, [dims] * len(op.results), linear=linear, reductions=reductions
    )


def elementwise_rule(linear: Linearity = "") -> RuleFunction:
    """
    Returns the sharding rule of elementwise ops of any dialect: each dimension of the
    results is a factor, and operands of fewer dimensions, or of size 1, are broadcast
    as in NumPy. Ops on scalars are replicated.

    `linear` names the operands in which the op is linear. Partial sums pass through
    these operands:

    - `"all"`: through all operands together, as in a sum. If only some operands were
      partial sums, every device would add the operands that are not partial;
    - `"each"`: through any one operand, as in a product;
    - `"first"`: through the first operand, as in a quotient;
    - `""`: through none.
    """

    def rule(op: Operation) -> Rule:
        if not all(isinstance(r.type, TensorType) for r in op.results):
            return Rule.replicated(op)
        return broadcast(op, _SETS[linear](len(op.operands)))

    return rule


for _name, _row in OPERATORS.items():
    if _row.of_several and _row.linear != "own":
        onnx_rule(_name)(elementwise_rule(_row.linear))


@onnx_rule("Div")
def divide(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Div. It is linear in the numerator, except for
    integers, whose division rounds.
    """
    floating = isinstance(element_type(op.results[0]), AnyFloat)
    return broadcast(op, ((0,),) if floating else ())


@onnx_rule("Where")
def where(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Where. It is linear in both alternatives together, with
    a whole condition. If one alternative is zero, as in gradients, it is linear in the
    nonzero alternative alone.
    """
    rule = broadcast(op, ((1, 2),), ANY)
    alone = [
        Linear(frozenset({kept}))
        for kept, other in ((1, 2), (2, 1))
        if (value := constant_operand(op, other)) is not None and not value.any()
    ]
    return replace(rule, linear=(*rule.linear, *alone))


@onnx_rule("Max", "Min")
def extremum(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Max and Min. Partial maxima (for Max) or minima (for
    Min) of one operand, or of all, pass.
    """
    count = len(op.operands)
    groups = {(i,) for i in range(count)} | {tuple(range(count))}
    reduction = "max" if op.name == "onnx.Max" else "min"
    return broadcast(op, tuple(sorted(groups)), frozenset({reduction}))


_WIDER: dict[Attribute, tuple[Attribute, ...]] = {
    Float16Type(): (Float16Type(), Float32Type(), Float64Type()),
    BFloat16Type(): (BFloat16Type(), Float32Type(), Float64Type()),
    Float32Type(): (Float32Type(), Float64Type()),
    Float64Type(): (Float64Type(),),
}


def _widens(op: OnnxOp) -> bool:
    """
    Whether a cast keeps the exact value of every element. Casting then commutes with
    sums.
    """
    source, target = element_type(op.operands[0]), element_type(op.results[0])
    return target in _WIDER.get(source, ())


@onnx_rule("Cast")
def cast(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Cast. It is linear if the result's type can hold every
    value of the operand's type.
    """
    return broadcast(op, ((0,),) if _widens(op) else (), ANY)


@onnx_rule("CastLike")
def cast_like(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of CastLike, which equals the rule of Cast for the first
    operand. Only the type of the second operand matters. If both operands have the same
    shape, they share their dimensions; otherwise the second operand may be split in any
    way.
    """
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.results[0]))
    like = shape_of(op.operands[1])
    other = dims if like == shape_of(op.operands[0]) else builder.factors(like)
    linear = ((0,),) if _widens(op) else ()
    return builder.rule([dims, other], [dims], linear=linear, reductions=ANY)


@onnx_rule("Dropout")
def dropout(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Dropout. In inference it is elementwise. In training it
    is replicated, because each device would draw a different mask.
    """
    training = op.input(2)
    if training is not None:
        value = constant_operand(op, 2)
        if value is None or bool(value.any()):
            return Rule.replicated(op)
    return broadcast(op, ((0,),) if len(op.results) == 1 else ())


@onnx_rule("QuantizeLinear", "DequantizeLinear")
def quantize(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of quantization, which is elementwise. Scales along one
    axis are split with that axis. With a scale per block, nothing is split.
    """
    builder = RuleBuilder(op)
    sizes = shape_of(op.results[0])
    scale = shape_of(op.input(1))
    if len(scale) > 1 or op.attribute("block_size", 0):
        return Rule.replicated(op)
    dims = builder.factors(sizes)
    parameters = ()
    if scale:
        axis = op.attribute("axis")
        whole = scale[0] == 1 or scale[0] != sizes[axis]
        parameters = ((),) if whole else (dims[axis],)
    # One zero point may have a dimension where the only scale has none.
    rank = len(shape_of(op.input(2)))
    zero = parameters if rank == len(scale) else ((),) * rank
    return builder.rule([dims, parameters, zero], [dims])
