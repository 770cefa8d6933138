"""Merges linear layers of a function that read the same value into one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.gradients.rule import GradientBuilder
from distir.program import describe, scope_of
from distir.transforms.patterns.match import element


@dataclass(frozen=True)
class LinearLayer:
    """
    A linear layer in a function.

    - `product`: a MatMul or Gemm of `source` and `weight`;
    - `outputs`: the dimension of `weight` that holds the outputs;
    - `transpose`: the op that transposes the weight before the product, or None;
    - `bias`, `addition`: the bias and the op that adds it. `addition` is None if the
      Gemm adds the bias.
    """

    product: OnnxOp
    source: SSAValue
    weight: BlockArgument
    outputs: int
    transpose: OnnxOp | None = None
    bias: BlockArgument | None = None
    addition: OnnxOp | None = None

    @property
    def ops(self) -> tuple[Operation, ...]:
        """The ops of the layer, in the order of the program."""
        found = (self.transpose, self.product, self.addition)
        return tuple(op for op in found if op is not None)

    @property
    def result(self) -> SSAValue:
        """The value that the layer computes."""
        return (self.addition or self.product).results[0]


def linear_of(product: Operation) -> LinearLayer | None:
    """
    Returns the linear layer that consists of `product`, a matrix product with a
    parameter, and its bias. Returns None for any other op.
    """
    if not isinstance(product, OnnxOp) or len(product.operands) < 2:
        return None
    source, weight = product.operands[0], product.operands[1]
    transpose = None
    if isinstance(weight.owner, OnnxOp) and weight.owner.name == "onnx.Transpose":
        transpose = weight.owner
        weight = transpose.operands[0]
    if not isinstance(weight, BlockArgument) or len(shape_of(weight.type)) != 2:
        return None
    outputs = 1 if transpose is None else 0
    found = LinearLayer(product, source, weight, outputs, transpose)
    if product.name == "onnx.Gemm":
        if product.attribute("transA") or {product.attribute("alpha"), 1.0} != {1.0}:
            return None
        bias = product.input(2)
        if product.attribute("transB"):
            found = replace(found, outputs=1 - outputs)
        if bias is None:
            return found
        is_plain = product.attribute("beta") in (None, 1.0)
        if not is_plain or not isinstance(bias, BlockArgument):
            return None
        return replace(found, bias=bias) if len(shape_of(bias.type)) == 1 else None
    if product.name != "onnx.MatMul":
        return None
    uses = list(product.results[0].uses)
    reader = uses[0].operation if len(uses) == 1 else None
    if isinstance(reader, OnnxOp) and reader.name == "onnx.Add":
        other = reader.operands[1 - uses[0].index]
        is_own = scope_of(reader) == scope_of(product)
        if is_own and isinstance(other, BlockArgument):
            size = shape_of(weight.type)[outputs]
            if shape_of(other.type) == (size,):
                return replace(found, bias=other, addition=reader)
    return found


def why_apart(linears: Sequence[LinearLayer], groups: int = 1) -> str | None:
    """
    Returns the reason why linear layers of one function cannot be merged, or None if
    they can. `groups` is the number of groups into which the outputs of each layer must
    divide.
    """
    first = linears[0]
    for linear in linears:
        size = shape_of(linear.weight.type)[linear.outputs]
        if size % groups:
            return (
                f"the {size} outputs of {describe(linear.product)} cannot be cut into "
                f"{groups} groups"
            )
    for other in linears[1:]:
        names = f"{describe(first.product)} and {describe(other.product)}"
        if other.source is not first.source:
            return f"{names} do not read the same value"
        if (other.bias is None) != (first.bias is None):
            return f"only one of {names} has a bias"
        if (other.product.name, other.outputs, other.transpose is None) != (
            first.product.name,
            first.outputs,
            first.transpose is None,
        ):
            return f"the weights of {names} are stored in different ways"
        if element(other.weight) != element(first.weight):
            return f"{names} have weights of different types"
    weights = {linear.weight for linear in linears}
    return None if len(weights) == len(linears) else "two of them have the same weight"


def merge_linears(
    linears: Sequence[LinearLayer], scope: str, groups: int = 1
) -> list[Operation]:
    """
    Replaces linear layers by a single layer with scope `scope`. `why_apart` must have
    returned None for them. Returns the `onnx.Concat` ops that join the parameters of
    the layers. `groups` is the number of groups into which the joined tensors
    interleave the layers.
    """
    first = linears[0]
    block = first.product.parent_block()
    assert block is not None
    ops = {op for linear in linears for op in linear.ops}
    point = InsertPoint.before(next(op for op in block.ops if op in ops))
    build = GradientBuilder(lambda op: Rewriter.insert_op(op, point), StringAttr(scope))
    weights = [linear.weight for linear in linears]
    sizes = [shape_of(value.type)[first.outputs] for value in weights]
    weight = build.onnx("Concat", *weights, axis=first.outputs)
    joined = [weight.owner]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    bias = build.onnx("Concat", *biases, axis=0) if biases else None
    if bias is not None:
        joined.append(bias.owner)
    if first.transpose is not None:
        weight = build.onnx("Transpose", weight, perm=[1, 0])
    if first.product.name == "onnx.Gemm":
        names = first.product.SCHEMA.attributes
        attributes = {name: first.product.attribute(name) for name in names}
        value = build.onnx("Gemm", first.source, weight, bias, **attributes)
    else:
        value = build.onnx("MatMul", first.source, weight)
        value = value if bias is None else build.onnx("Add", value, bias)
    outer = shape_of(value.type)[:-1]
    if groups > 1:
        value = build.onnx("Reshape", value, build.integers([*outer, groups, -1]))
        each = build.integers([size // groups for size in sizes])
    else:
        each = build.integers(sizes)
    rank = len(shape_of(value.type))
    parts: Sequence[SSAValue] = build.onnx_results(
        "Split", value, each, results=len(sizes), axis=rank - 1
    )
    if groups > 1:
        parts = [
            build.onnx("Reshape", part, build.integers([*outer, size]))
            for part, size in zip(parts, sizes, strict=True)
        ]
    for linear, part in zip(linears, parts, strict=True):
        part.name_hint = linear.result.name_hint
        linear.result.replace_all_uses_with(part)
        for op in reversed(linear.ops):
            if not any(result.first_use for result in op.results):
                Rewriter.erase_op(op)
    return [op for op in joined if isinstance(op, Operation)]
