"""Conversions of matrix products."""

from __future__ import annotations

from string import ascii_letters

from xdsl.ir import SSAValue

from distir.frontends.stablehlo.registry import HloCall, converts
from distir.frontends.stablehlo.tensors import LazyTensor


@converts("stablehlo.dot_general")
def _dot_general(call: HloCall) -> LazyTensor:
    found = call.numbers("dot_dimension_numbers")
    pairs = [
        (
            found.get(f"lhs_{kind}_dimensions", []),
            found.get(f"rhs_{kind}_dimensions", []),
        )
        for kind in ("batching", "contracting")
    ]
    return product(call, *pairs[0], *pairs[1])


@converts("stablehlo.dot")
def _dot(call: HloCall) -> LazyTensor:
    rank = len(call.operands[0].shape)
    return product(call, [], [], [rank - 1], [0])


def product(
    call: HloCall,
    left_batch: list[int],
    right_batch: list[int],
    left_inner: list[int],
    right_inner: list[int],
) -> LazyTensor:
    """
    Returns the sum of products over the inner dimensions of the two operands. The
    result has the batch dimensions first, then the remaining dimensions of the left and
    of the right operand. A plain matrix product becomes a MatMul, any other product an
    Einsum.
    """
    build, element = call.build, call.element()
    left, right = (operand_of(call, i) for i in (0, 1))
    ranks = [len(LazyTensor.of(value).shape) for value in (left, right)]
    batch = list(range(len(left_batch)))
    plain = (
        left_batch == right_batch == batch
        and left_inner == [ranks[0] - 1]
        and right_inner == [len(batch)]
        and ranks[1] == len(batch) + 2
        and (ranks[0] == ranks[1] or not batch)
        and ranks[0] >= 2
    )
    if plain:
        return LazyTensor.of(build.op("MatMul", [left, right], call.shape(), element))
    letters = iter(ascii_letters)
    names = [[""] * rank for rank in ranks]
    for pair in ((left_batch, right_batch), (left_inner, right_inner)):
        for i, j in zip(*pair, strict=True):
            names[0][i] = names[1][j] = next(letters)
    result = [names[0][i] for i in left_batch]
    for side in names:
        for i, name in enumerate(side):
            if not name:
                side[i] = next(letters)
                result.append(side[i])
    equation = f"{''.join(names[0])},{''.join(names[1])}->{''.join(result)}"
    return LazyTensor.of(
        build.op("Einsum", [left, right], call.shape(), element, equation=equation)
    )


def operand_of(call: HloCall, index: int) -> SSAValue:
    """
    Returns operand `index` with its full shape, cast to the element type of the result.
    """
    value = call.build.whole(call.operands[index])
    return call.build.cast(value, call.element())
