"""The ops of random programs: each step appends one kind of op to a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from hypothesis import strategies as st
from xdsl.dialects.builtin import f32, f64, i1, i64
from xdsl.ir import SSAValue

from support.random_programs import TABLE, ProgramBuilder, shape_of

SIZES = (1, 2, 3, 4, 6, 8)

Step = Callable[[ProgramBuilder, SSAValue], Sequence[SSAValue]]
STEPS: list[Step] = []
"""
The steps: each appends an op on a value and returns the new values; none if it does not
fit.
"""


def step(function: Step) -> Step:
    STEPS.append(function)
    return function


def _axis(b: ProgramBuilder, x: SSAValue) -> int:
    return b.draw(st.integers(0, len(shape_of(x)) - 1))


def _with(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


@step
def unary(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    name = b.draw(st.sampled_from(["Relu", "Tanh", "Neg", "Sigmoid", "Identity"]))
    return [b.op(name, [x], shape_of(x))]


@step
def binary(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    y = b.draw(st.sampled_from([v for v in b.values if v.type == x.type]))
    name = b.draw(st.sampled_from(["Add", "Add", "Mul", "Sub", "Max", "Min"]))
    return [b.op(name, [x, y], shape_of(x))]


@step
def broadcast(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    """
    Combines with a parameter or constant of fewer dimensions, or dimensions of size 1.
    """
    shape = shape_of(x)
    other = [n if b.draw(st.booleans()) else 1 for n in shape]
    other = other[b.draw(st.integers(0, len(shape))) :]
    if b.draw(st.booleans()):
        y = b.parameter(other)
    else:
        y = b.constant(np.arange(prod(other)).reshape(other) % 3 - 1.0, f32)
    return [b.op(b.draw(st.sampled_from(["Add", "Mul"])), [x, y], shape)]


@step
def filled(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    """Adds a constant with equal elements, which later ops can use too."""
    y = b.constant(np.full(shape_of(x), 0.5), f32)
    return [y, b.op("Add", [x, y], shape_of(x))]


@step
def matmul(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = shape_of(x)
    if not shape:
        return []
    width = b.draw(st.sampled_from(SIZES))
    return [b.op("MatMul", [x, b.parameter((shape[-1], width))], (*shape[:-1], width))]


@step
def gemm(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = shape_of(x)
    if not shape:
        return []
    rows, inner = prod(shape[:-1]), shape[-1]
    flat = b.op("Reshape", [x, b.constant([rows, inner])], (rows, inner))
    width = b.draw(st.sampled_from(SIZES))
    w = b.parameter((width, inner))
    if b.draw(st.booleans()):
        w, width = flat, rows
    beta = b.draw(st.sampled_from([1.0, 0.5]))
    bias = b.parameter(b.draw(st.sampled_from([(width,), (1,), (rows, width), ()])))
    return [b.op("Gemm", [flat, w, bias], (rows, width), transB=1, beta=beta)]


@step
def attention(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = shape_of(x)
    if len(shape) != 3:
        return []
    batch, rows, inner = shape
    if b.draw(st.booleans()):
        equation = "bik,bjk->bij"
        return [b.op("Einsum", [x, x], (batch, rows, rows), equation=equation)]
    y = b.op("Transpose", [x], (batch, inner, rows), perm=[0, 2, 1])
    return [b.op("MatMul", [x, y], (batch, rows, rows))]


@step
def einsum(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = shape_of(x)
    if len(shape) != 3:
        return []
    heads, width = b.draw(st.sampled_from([2, 4])), b.draw(st.sampled_from([2, 3]))
    w = b.parameter((shape[-1], heads, width))
    result = (shape[0], heads, shape[1], width)
    return [b.op("Einsum", [x, w], result, equation="bsd,dhe->bhse")]


@step
def transpose(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = shape_of(x)
    perm = b.draw(st.permutations(range(len(shape))))
    return [b.op("Transpose", [x], tuple(shape[p] for p in perm), perm=perm)]


@step
def reshape(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    """Regroups the elements; often merges or splits dimensions."""
    n = prod(shape_of(x))
    first = b.draw(st.sampled_from([s for s in SIZES if n % s == 0]))
    second = b.draw(st.sampled_from([s for s in SIZES if n // first % s == 0]))
    sizes = [first, second, n // first // second]
    shape = b.draw(st.permutations(sizes))
    if b.draw(st.booleans()):
        shape = [shape[0] * shape[1], shape[2]]
    return [b.op("Reshape", [x, b.constant(shape)], shape)]


@step
def squeeze(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = shape_of(x)
    ones = [i for i, n in enumerate(shape) if n == 1]
    if ones and b.draw(st.booleans()):
        axis = b.draw(st.sampled_from(ones))
        shape = (*shape[:axis], *shape[axis + 1 :])
        return [b.op("Squeeze", [x, b.constant([axis])], shape)]
    if len(shape) > 3:
        return []
    axis = b.draw(st.integers(0, len(shape)))
    new = (*shape[:axis], 1, *shape[axis:])
    return [b.op("Unsqueeze", [x, b.constant([axis])], new)]


@step
def expand(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = [2 if n == 1 else n for n in shape_of(x)]
    if prod(shape) > 2048:
        return []
    return [b.op("Expand", [x, b.constant(shape)], shape)]


@step
def cast(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    wide = b.op("Cast", [x], shape_of(x), f64, to=11)
    return [b.op("Cast", [wide], shape_of(x), to=1)]


@step
def normalise(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = shape_of(x)
    if not shape:
        return []
    if b.draw(st.booleans()):
        return [b.op("Softmax", [x], shape, axis=_axis(b, x) - len(shape))]
    # The scale is a parameter near 0, the bias keeps the result from being constant.
    scale, bias = b.parameter((shape[-1],)), b.parameter((shape[-1],))
    return [b.op("LayerNormalization", [x, scale, bias], shape, axis=-1, epsilon=0.1)]


@step
def reduce(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = shape_of(x)
    if not shape:
        return []
    axes = b.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    name = b.draw(
        st.sampled_from(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"])
    )
    keep = b.draw(st.booleans())
    sizes = [(1 if i in axes else n) for i, n in enumerate(shape)]
    if not keep:
        sizes = [n for i, n in enumerate(shape) if i not in axes]
    return [b.op(name, [x, b.constant(sorted(axes))], sizes, keepdims=int(keep))]


@step
def split(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    """Splits in equal or unequal parts."""
    shape = shape_of(x)
    if not shape:
        return []
    axis = _axis(b, x)
    size = shape[axis]
    if size % 2 == 0 and b.draw(st.booleans()):
        half = _with(shape, axis, size // 2)
        return b.ops("Split", [x], [half, half], axis=axis, num_outputs=2)
    if size < 2:
        return []
    first = b.draw(st.integers(1, size - 1))
    parts = [first, size - first]
    shapes = [_with(shape, axis, n) for n in parts]
    return b.ops("Split", [x, b.constant(parts)], shapes, axis=axis)


@step
def concat(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = shape_of(x)
    if not shape or prod(shape) > 1024:
        return []
    axis = _axis(b, x)
    y = b.draw(st.sampled_from([v for v in b.values if v.type == x.type]))
    return [b.op("Concat", [x, y], _with(shape, axis, 2 * shape[axis]), axis=axis)]


@step
def slice_(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    shape = shape_of(x)
    if not shape:
        return []
    axis = _axis(b, x)
    start = b.draw(st.integers(0, shape[axis] - 1))
    end = b.draw(st.integers(start + 1, shape[axis]))
    bounds = [b.constant([n]) for n in (start, end, axis)]
    return [b.op("Slice", [x, *bounds], _with(shape, axis, end - start))]


@step
def embedding(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    """Looks up an input in a parameter, as a vocabulary is."""
    ids = b.argument("input", b.draw(st.sampled_from([(4, 4), (8,), (4, 2, 2)])), i64)
    table = (
        b.draw(st.sampled_from([TABLE, 2 * TABLE])),
        b.draw(st.sampled_from(SIZES)),
    )
    return [
        b.op("Gather", [b.parameter(table), ids], (*shape_of(ids), table[1]), axis=0)
    ]


@step
def gather(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    """Looks up constant or given positions of a dimension."""
    shape = shape_of(x)
    axes = [i for i, n in enumerate(shape) if n >= TABLE]
    if not axes:
        return []
    axis = b.draw(st.sampled_from(axes))
    if b.draw(st.booleans()):
        ids = b.argument("input", (4,), i64)
    else:
        ids = b.constant(b.draw(st.sampled_from([1, [0, -1], [3, 0, 2, 1]])))
    sizes = (*shape[:axis], *shape_of(ids), *shape[axis + 1 :])
    return [b.op("Gather", [x, ids], sizes, axis=axis)]


@step
def where(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    """Selects by a mask that is an input, given for all or some dimensions."""
    shape = shape_of(x)
    sizes = [n if b.draw(st.booleans()) else 1 for n in shape]
    mask = b.argument("input", sizes[b.draw(st.integers(0, len(sizes))) :], i1)
    same = [v for v in b.values if v.type == x.type]
    y = (
        b.constant(-1.0, f32)
        if b.draw(st.booleans())
        else b.draw(st.sampled_from(same))
    )
    order = b.draw(st.permutations([x, y]))
    return [b.op("Where", [mask, *order], shape)]
