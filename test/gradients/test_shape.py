"""Gradients of ops that regroup, repeat, cut and join tensors."""

import re

import numpy as np
import pytest
import torch
from gradients.harness import (
    GradientCase,
    backward_program,
    check,
    integers,
    normal,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import tries

from distir.errors import DistIRError

X = normal(2, 3, 4)
SMALLEST = np.iinfo(np.int64).min


def with_constants(name, x, *constants, torch=None, results=1, label="", **attributes):
    """An op on an argument and constants."""
    constants = [None if c is None else np.asarray(c) for c in constants]
    shown = label or "-".join(str(c if c is None else c.tolist()) for c in constants)
    return GradientCase(
        name,
        [x, *constants],
        attributes,
        frozenset(range(1, len(constants) + 1)),
        results,
        f"{list(x.shape)}-{shown}-{attributes}".replace(" ", ""),
        torch=torch,
    )


def reshape(name, *constants, to, **attributes):
    return with_constants(
        name,
        X[:1],
        *constants,
        torch=lambda x, *_: x.reshape(to),
        **attributes,
    )


def transpose(*order):
    return with_constants("Transpose", X, torch=lambda x: x.permute(order), perm=order)


def expand(shape, to):
    return with_constants(
        "Expand",
        normal(*shape),
        integers(to),
        torch=lambda x, _: x.expand(to) if len(to) >= x.ndim else None,
    )


def tile(shape, repeats):
    return with_constants(
        "Tile", normal(*shape), integers(repeats), torch=lambda x, _: x.tile(repeats)
    )


def concat(axis, *shapes):
    return GradientCase(
        "Concat",
        [normal(*s, seed=i) for i, s in enumerate(shapes)],
        {"axis": axis},
        torch=lambda *tensors: torch.cat(tensors, axis),
        label=f"{axis}-{len(shapes)}",
    )


def split(axis, *sizes):
    return with_constants(
        "Split",
        X,
        integers(list(sizes)),
        torch=lambda x, _: x.split(sizes, axis),
        results=len(sizes),
        axis=axis,
    )


def slice_(starts, ends, axes=None, steps=None, x=X):
    given = [integers(starts), integers(ends)]
    if axes is not None or steps is not None:
        given.append(integers(list(range(len(starts))) if axes is None else axes))
    if steps is not None:
        given.append(integers(steps))

    def run(x, *_):
        indices = [torch.arange(n) for n in x.shape]
        steps_or_ones = [1] * len(starts) if steps is None else steps
        over = range(len(starts)) if axes is None else axes
        for start, end, axis, step in zip(
            starts, ends, over, steps_or_ones, strict=True
        ):
            window = slice(start, end, step).indices(x.shape[axis])
            indices[axis] = torch.tensor(list(range(*window)), dtype=torch.int64)
        return x[torch.meshgrid(*indices, indexing="ij")]

    return with_constants("Slice", x, *given, torch=run)


def pad(pads, fill=None, axes=None):
    given = [integers(pads)]
    if fill is not None or axes is not None:
        given.append(None if fill is None else np.array(fill))
    if axes is not None:
        given.append(integers(axes))
    return with_constants("Pad", X, *given)


CASES = [
    reshape("Reshape", integers([4, 3]), to=(4, 3)),
    reshape("Reshape", integers([1, 3, 4]), to=(1, 3, 4)),
    reshape("Reshape", integers([-1]), to=(12,)),
    reshape("Flatten", to=(3, 4), axis=2),
    reshape("Flatten", to=(1, 12), axis=0),
    reshape("Squeeze", integers([0]), to=(3, 4)),
    reshape("Squeeze", to=(3, 4)),
    reshape("Unsqueeze", integers([0, -1]), to=(1, 1, 3, 4, 1)),
    with_constants("Transpose", X, torch=lambda x: x.permute(2, 1, 0)),
    transpose(1, 2, 0),
    transpose(0, 2, 1),
    with_constants("SpaceToDepth", normal(1, 3, 2, 4), blocksize=2),
    with_constants("DepthToSpace", normal(1, 12, 1, 2), blocksize=2),
    with_constants("DepthToSpace", normal(1, 12, 1, 2), blocksize=2, mode="CRD", torch=lambda x: torch.pixel_shuffle(x, 2)),
    expand((3,), (2, 3)),
    expand((2, 1, 3), (2, 4, 3)),
    expand((1,), (2, 2)),
    expand((), (2, 2)),
    expand((2, 3), (2, 3)),
    tile((2, 3), (2, 1)),
    tile((2, 3), (3, 2)),
    tile((2,), (1,)),
    concat(0, (2, 3), (1, 3)),
    concat(-1, (2, 3), (2, 1), (2, 2)),
    concat(1, (2, 3)),
    split(0, 1, 1),
    split(-1, 1, 3),
    split(1, 1, 1, 1),
    split(1, 3),
    with_constants("Split", X, torch=lambda x: x.split(2, 2), results=2, axis=2, num_outputs=2),
    slice_([1], [3], [2]),
    slice_([0, 1], [1, 3], [0, 1]),
    slice_([0, -3], [1, -1], [0, -1]),
    slice_([1, 0, 0], [2, 3, 100]),
    slice_([0], [4], [2], [2]),
    slice_([1], [4], [2], [2]),
    slice_([0], [4], [2], [3]),
    slice_([0, 0], [3, 4], [1, 2], [2, 3]),
    slice_([-1], [SMALLEST], [1], [-1]),
    slice_([3], [0], [2], [-2]),
    slice_([3, 2], [SMALLEST, SMALLEST], [2, 1], [-1, -2]),
    slice_([2], [2], [2]),
    slice_([3], [4], [2], [5]),
    pad([0, 1, 0, 2, 0, 1]),
    pad([0, -1, 0, 0, 1, -2]),
    pad([0, -1, 0, 0, 0, -2]),
    pad([1, 2], 3.0, [1]),
    pad([1, 2], axes=[-1]),
    GradientCase("Pad", [X, integers([0, 1, 0, 0, 0, 2]), np.array(0.5)], constants=frozenset([1]), label="fill"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


@st.composite
def windows(draw):
    """Starts, ends and steps of a slice."""
    bounds = st.integers(-5, 5)
    count = draw(st.integers(1, 3))
    starts, ends = ([draw(bounds) for _ in range(count)] for _ in range(2))
    steps = [draw(st.sampled_from([-3, -2, -1, 1, 2, 3])) for _ in range(count)]
    return starts, ends, None, steps


@settings(max_examples=tries(40), deadline=None)
@given(windows())
def test_any_slice(window):
    check(slice_(*window))


def test_a_bound_that_is_not_constant_is_refused():
    case = GradientCase("Slice", [X, integers([0]), integers([1])])
    message = "onnx.Slice has a gradient only where 'starts' is a constant"
    with pytest.raises(DistIRError, match=re.escape(message)):
        backward_program(case, frozenset([0]))


def test_padding_by_elements_is_refused():
    case = with_constants("Pad", X, integers([0, 0, 1, 0, 0, 1]), mode="edge")
    with pytest.raises(DistIRError, match="no gradient rule for mode 'edge'"):
        backward_program(case, frozenset([0]))
