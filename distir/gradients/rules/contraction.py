"""
Gradient rules of contractions, of Fourier transforms, and of determinants.

The gradient of an operand of a contraction is one contraction, so that hardware
computes one matrix product. For the gradient of a weight, the contraction also sums
over the batch dimensions; if these are split over devices, the result is a partial sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from string import ascii_letters

import numpy as np
from xdsl.ir import Operation, SSAValue

from distir.dialects.constants import constant_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.determinant import SlogdetGradOp, SlogdetOp
from distir.errors import DistIRError
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    onnx_gradient,
    shape,
)
from distir.gradients.rules.arithmetic import is_wanted
from distir.gradients.rules.shape import padded
from distir.program import describe


@onnx_gradient("MatMul")
def matmul(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of MatMul, Y = A B: `dA = dY B^T` and `dB = A^T dY`. If B is a matrix,
    the rows of all batches of A and dY are treated as the rows of one matrix.
    """
    a, b = op.operands
    rank_a, rank_b = len(shape(a)), len(shape(b))
    if rank_a >= 2 and rank_b == 2:
        return _matmul_by_matrix(op, gradient, build)
    inner, row, column, *free = ascii_letters
    batch = "".join(free[: max(rank_a, rank_b, 2) - 2])

    def leading(rank: int) -> str:
        return batch[len(batch) - (rank - 2) :] if rank > 2 else ""

    terms = [
        leading(rank_a) + (row if rank_a > 1 else "") + inner,
        leading(rank_b) + inner + (column if rank_b > 1 else ""),
    ]
    result = batch + (row if rank_a > 1 else "") + (column if rank_b > 1 else "")
    return _einsum_gradients(op, terms, result, gradient, build)


def _matmul_by_matrix(
    op: OnnxOp, gradient: SSAValue, build: GradientBuilder
) -> Gradients:
    a, b = op.operands
    *batch, inner = shape(a)
    rows, columns = prod(batch), shape(b)[1]

    def matrix(value: SSAValue, width: int) -> SSAValue:
        if len(shape(value)) == 2:
            return value
        return build.onnx("Reshape", value, build.integers([rows, width]))

    gradient = matrix(gradient, columns)
    da = db = None
    if is_wanted(a):
        da = build.reshape_like(build.onnx("Gemm", gradient, b, transB=1), a)
    if is_wanted(b):
        db = build.onnx("Gemm", matrix(a, inner), gradient, transA=1)
    return [da, db]


@onnx_gradient("Gemm")
def gemm(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Gemm, Y = alpha A B + beta C: `dA = alpha dY B^T`, `dB = alpha A^T
    dY`, and dC is `beta dY` summed to the shape of C. If the op transposes A or B, the
    gradient of this operand is transposed, too.
    """
    a, b = op.operands[:2]
    bias = op.input(2)
    alpha, beta = op.attribute("alpha"), op.attribute("beta")
    trans_a, trans_b = op.attribute("transA"), op.attribute("transB")

    def product(
        left: SSAValue, right: SSAValue, left_transposed: int, right_transposed: int
    ) -> SSAValue:
        return build.onnx(
            "Gemm",
            left,
            right,
            alpha=alpha,
            transA=left_transposed,
            transB=right_transposed,
        )

    da = db = None
    if is_wanted(a) and trans_a:
        da = product(b, gradient, trans_b, 1)
    elif is_wanted(a):
        da = product(gradient, b, 0, 1 - trans_b)
    if is_wanted(b) and trans_b:
        db = product(gradient, a, 1, trans_a)
    elif is_wanted(b):
        db = product(a, gradient, 1 - trans_a, 0)
    if bias is None:
        return [da, db]
    dc = None
    if is_wanted(bias):
        dc = build.sum_to(gradient, bias)
        if beta != 1:
            dc = build.onnx("Mul", dc, build.scalar(beta, dc))
    return [da, db, dc]


@onnx_gradient("Einsum")
def einsum(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Einsum: the gradient of an operand is an Einsum whose equation
    exchanges this operand and the result. Raises DistIRError for a diagonal, that is, a
    letter that occurs twice in one term.
    """
    terms, result = _spelled_out(op)
    return _einsum_gradients(op, terms, result, gradient, build)


def _spelled_out(op: OnnxOp) -> tuple[list[str], str]:
    """
    Returns the terms of an Einsum's equation for the operands, and the term for the
    result, with a letter for each dimension. Raises DistIRError for a diagonal.
    """
    equation: str = op.attribute("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        count = Counter(left.replace(",", "").replace(".", ""))
        right = "".join(sorted(c for c, n in count.items() if n == 1))
        right = "..." + right if "..." in left else right
    hidden = [
        len(shape(v)) - len(term.replace("...", "")) if "..." in term else 0
        for v, term in zip(op.operands, terms, strict=True)
    ]
    longest = max(hidden, default=0)
    batch = "".join([c for c in ascii_letters if c not in equation][:longest])
    spelled = [
        term.replace("...", batch[longest - n :])
        for term, n in zip(terms, hidden, strict=True)
    ]
    right = right.replace("...", batch)
    if any(len(set(term)) < len(term) for term in (*spelled, right)):
        raise DistIRError(
            f"{describe(op)}: the equation {equation!r} takes a diagonal, which has no "
            "gradient rule; write it as a product with an identity matrix"
        )
    return spelled, right


def _einsum_gradients(
    op: OnnxOp,
    terms: Sequence[str],
    result: str,
    gradient: SSAValue,
    build: GradientBuilder,
) -> Gradients:
    sizes: dict[str, int] = {}
    for value, letters in zip(op.operands, terms, strict=True):
        for letter, size in zip(letters, shape(value), strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    found: list[SSAValue | None] = []
    for i, (target, letters) in enumerate(zip(op.operands, terms, strict=True)):
        others = [
            (value, term)
            for j, (value, term) in enumerate(zip(op.operands, terms, strict=True))
            if j != i
        ]
        factors = [(gradient, result), *others]
        found.append(
            _contraction(factors, target, letters, sizes, build)
            if is_wanted(target)
            else None
        )
    return found


def _contraction(
    factors: Sequence[tuple[SSAValue, str]],
    target: SSAValue,
    letters: str,
    sizes: dict[str, int],
    build: GradientBuilder,
) -> SSAValue:
    """
    Returns the gradient of `target`, whose dimensions are `letters`: the product of
    `factors`. The product is summed over dimensions that `target` lacks or that were
    broadcast, and repeated along dimensions that only `target` has.
    """
    values: list[SSAValue] = []
    terms: list[str] = []
    for value, term in factors:
        kept = [
            (c, n)
            for c, n in zip(term, shape(value), strict=True)
            if n == sizes[c] or n > 1
        ]
        if len(kept) < len(term):
            value = build.onnx("Reshape", value, build.integers([n for _, n in kept]))
        values.append(value)
        terms.append("".join(c for c, _ in kept))
    own = [
        c
        for c, n in zip(letters, shape(target), strict=True)
        if n == sizes[c] and any(c in term for term in terms)
    ]
    equation = f"{','.join(terms)}->{''.join(own)}"
    if equation == f"{''.join(own)}->{''.join(own)}":
        gradient = values[0]
    else:
        gradient = build.onnx("Einsum", *values, equation=equation)
    stretched = [sizes[c] if c in own else 1 for c in letters]
    if len(own) < len(letters):
        gradient = build.onnx("Reshape", gradient, build.integers(stretched))
    if tuple(stretched) != shape(target):
        gradient = build.onnx("Expand", gradient, build.integers(shape(target)))
    return gradient


@gradient_rule("train.slogdet")
def logarithm(op: Operation, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of `train.slogdet`: only the gradient of the logarithm is used,
    because the sign is constant almost everywhere.
    """
    assert isinstance(op, SlogdetOp)
    _, gradient = gradients
    if gradient is None:
        return [None]
    return [build.result(SlogdetGradOp(gradient, op.x))]


@onnx_gradient("Det")
def determinant(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Det: `y dy` times the transposed inverse of the matrix. As in
    PyTorch, the gradient of a singular matrix is zero.
    """
    x, y = op.operands[0], op.results[0]
    dx = build.result(SlogdetGradOp(build.onnx("Mul", dy, y), x))
    zero = build.scalar(0, y)
    is_singular = build.onnx("Equal", y, zero)
    last = build.integers([-2, -1])
    is_singular = build.onnx("Unsqueeze", is_singular, last)
    return [build.onnx("Where", is_singular, zero, dx)]


@onnx_gradient("DFT")
def transform(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of DFT: the transform of dy in the other direction.

    The gradient of y = F x is dx = F^H dy, which is n times the inverse transform of
    length n; the rule corrects this factor. For a real x only the real part is kept.
    The gradient of a one-sided transform is padded with zeros to all frequencies. In
    the gradient of a one-sided inverse transform, frequencies that the inverse uses
    twice have twice the weight. Raises DistIRError if the program computes the axis or
    the length.
    """
    x = op.operands[0]
    where, length = op.input(2), op.input(1)
    axis = -2 if where is None else constant_of(where)
    known = None if length is None else constant_of(length)
    if axis is None or (length is not None and known is None):
        raise DistIRError(
            f"{describe(op)} has no gradient rule where its axis or its length is computed; "
            f"transform along a dimension that is known"
        )
    axis = int(axis) % len(shape(x))
    inverse, onesided = op.attribute("inverse"), op.attribute("onesided")
    before = shape(x)[axis]
    if known is not None:
        n = int(known)
    else:
        n = 2 * (before - 1) if inverse and onesided else before
    if inverse and onesided:
        dx = _transformed(dy, axis, 0, build, onesided=1)
        weights = np.full(n // 2 + 1, 2 / n)
        weights[0] = 1 / n
        if n % 2 == 0:
            weights[-1] = 1 / n
        sizes = [n // 2 + 1, *[1] * (len(shape(x)) - axis - 1)]
        dx = build.onnx("Mul", dx, build.array(weights.reshape(sizes), dx))
    else:
        if onesided:
            dy = _resized(dy, axis, n, build)
        dx = _transformed(dy, axis, 1 - inverse, build)
        dx = build.onnx("Mul", dx, build.scalar(1 / n if inverse else n, dx))
    dx = _resized(dx, axis, before, build)
    if shape(x)[-1] == 1:
        bounds = [build.integers([i]) for i in (0, 1, len(shape(x)) - 1)]
        dx = build.onnx("Slice", dx, *bounds)
    return [dx, *[None] * (len(op.operands) - 1)]


def _transformed(
    value: SSAValue, axis: int, inverse: int, build: GradientBuilder, onesided: int = 0
) -> SSAValue:
    where = build.constant(np.array(axis, np.int64))
    return build.onnx("DFT", value, None, where, inverse=inverse, onesided=onesided)


def _resized(value: SSAValue, axis: int, size: int, build: GradientBuilder) -> SSAValue:
    """
    Returns `value` with `size` elements along `axis`: cut at the end, or padded with
    zeros.
    """
    ends = [0] * len(shape(value))
    ends[axis] = size - shape(value)[axis]
    return padded(value, [0] * len(ends), ends, build)
