"""Sharding rules of matrix products, other contractions and Fourier transforms."""

from __future__ import annotations

from collections import Counter
from math import prod

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import (
    Dims,
    RuleBuilder,
    constant_axes,
    onnx_rule,
)


def _product(op: OnnxOp, builder: RuleBuilder) -> tuple[Dims, Dims, Dims]:
    """
    Returns the dimensions of `A`, `B` and the result of a NumPy matrix product. An
    operand of rank 1 has no row (or column) dimension. The leading dimensions
    broadcast.
    """
    a, b, out = (
        shape_of(op.operands[0]),
        shape_of(op.operands[1]),
        shape_of(op.results[0]),
    )
    matrix = (len(a) > 1) + (len(b) > 1)
    batch = builder.factors(out[: len(out) - matrix])
    row = builder.factors(a[-2:-1])
    column = builder.factors(b[-1:] if len(b) > 1 else ())
    inner = builder.factor(a[-1], "reduction")

    def leading(sizes: tuple[int, ...]) -> Dims:
        mine = batch[len(batch) - len(sizes) :]
        return tuple(d if n > 1 else () for n, d in zip(sizes, mine, strict=True))

    return (
        (*leading(a[:-2]), *row, inner),
        (*leading(b[:-2]), inner, *column),
        (*batch, *row, *column),
    )


@onnx_rule("MatMul")
def matmul(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of MatMul: `([..., i, k], [..., k, j]) -> [..., i, j]`. It
    is linear in each operand.
    """
    builder = RuleBuilder(op)
    a, b, out = _product(op, builder)
    return builder.rule(
        [a, b], [out], linear=[(0,), (1,)], flops=builder.contraction_flops()
    )


@onnx_rule("MatMulInteger")
def matmul_integer(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of MatMulInteger: the rule of MatMul without its
    linearity, because zero points are subtracted before the sum. The op is replicated
    if an operand has several zero points.
    """
    if any(prod(shape_of(op.input(i))) > 1 for i in (2, 3)):
        return Rule.replicated(op)
    builder = RuleBuilder(op)
    a, b, out = _product(op, builder)
    return builder.rule([a, b], [out], flops=builder.contraction_flops())


@onnx_rule("Gemm")
def gemm(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Gemm: `([i, k], [k, j], [i, j]) -> [i, j]`, where
    either matrix may be transposed. A bias is added after the sum over k, so the op is
    linear in a matrix and the bias together.
    """
    builder = RuleBuilder(op)
    out = builder.factors(shape_of(op.results[0]))
    row, column = out
    transposed_a, transposed_b = op.attribute("transA"), op.attribute("transB")
    inner = builder.factor(
        shape_of(op.operands[0])[0 if transposed_a else 1], "reduction"
    )
    a = (inner, row) if transposed_a else (row, inner)
    b = (column, inner) if transposed_b else (inner, column)
    bias = op.input(2)
    linear = [(0,), (1,)] if bias is None else [(0, 2), (1, 2)]
    return builder.rule(
        [a, b, builder.aligned(bias, out)],
        [out],
        linear=linear,
        decomposed=() if bias is None else (inner,),
        flops=builder.contraction_flops(),
    )


@onnx_rule("Einsum")
def einsum(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of an Einsum, read from its equation. Letters of the
    result are parallel; other letters are summed. Equations with an ellipsis or a
    diagonal are replicated.
    """
    equation: str = op.attribute("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        once = Counter(left.replace(",", ""))
        right = "".join(sorted(c for c in once if once[c] == 1))
    if "." in equation or any(len(set(t)) < len(t) for t in (*terms, right)):
        return Rule.replicated(op)
    builder = RuleBuilder(op)
    shapes = [shape_of(operand) for operand in op.operands]
    sizes: dict[str, int] = {}
    for term, dims in zip(terms, shapes, strict=True):
        for letter, size in zip(term, dims, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    factor_of = {
        letter: builder.factor(size, "parallel" if letter in right else "reduction")
        for letter, size in sizes.items()
    }
    return builder.rule(
        [
            tuple(
                factor_of[letter] if size > 1 else ()
                for letter, size in zip(term, dims, strict=True)
            )
            for term, dims in zip(terms, shapes, strict=True)
        ],
        [tuple(factor_of[letter] for letter in right)],
        linear=[(index,) for index in range(len(terms))],
        flops=builder.contraction_flops() if len(terms) > 1 else 0,
    )


@onnx_rule("DFT")
def transform(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of DFT. The transformed dimension is whole, and so is the
    last one, which holds real and imaginary parts. Other dimensions are parallel. The
    op is linear.
    """
    builder = RuleBuilder(op)
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    rank = len(source)
    axes = [rank - 2] if op.input(2) is None else constant_axes(op, 2, rank)
    if axes is None:
        return Rule.replicated(op)
    whole = {*axes, rank - 1}
    before = builder.whole_along(source, whole)
    after = tuple(
        builder.factor(size, "replicate") if dim in whole else before[dim]
        for dim, size in enumerate(target)
    )
    return builder.rule([before], [after], linear=[(0,)])
