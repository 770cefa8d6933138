"""Gradients of reductions and running sums."""

import numpy as np
import pytest
import torch
from gradients.harness import (
    GradientCase,
    backward_program,
    check,
    integers,
    normal,
    uniform,
)

from distir.errors import DistIRError

ALL = (None, [0], [-1], [0, 2], [1, 2])


def product(x, axes, keepdim):
    """torch's product takes one axis."""
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = x.prod(axis, keepdim)
    return x


FUNCTIONS = {
    "ReduceSum": lambda x, d, k: x.sum(d, k),
    "ReduceMean": lambda x, d, k: x.mean(d, k),
    "ReduceMax": lambda x, d, k: x.amax(d, k),
    "ReduceMin": lambda x, d, k: x.amin(d, k),
    "ReduceSumSquare": lambda x, d, k: x.square().sum(d, k),
    "ReduceL1": lambda x, d, k: x.abs().sum(d, k),
    "ReduceL2": lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k),
    "ReduceLogSum": lambda x, d, k: x.sum(d, k).log(),
    "ReduceLogSumExp": lambda x, d, k: x.logsumexp(d, k),
    "ReduceProd": product,
}


def reduction(name, axes, keepdims, x=None, smooth=True, **attributes):
    if x is None:
        x = (uniform if name == "ReduceLogSum" else normal)(2, 3, 2)
    over = tuple(range(x.ndim) if axes is None else axes)
    return GradientCase(
        name,
        [x] if axes is None else [x, integers(axes)],
        {"keepdims": keepdims, **attributes},
        frozenset([1]),
        label=f"{axes}-{keepdims}-{list(x.shape)}{'' if smooth else '-edge'}",
        torch=lambda x, *_: FUNCTIONS[name](x, over, bool(keepdims)),
        smooth=smooth,
    )


def without_axes(name, x):
    return GradientCase(
        name,
        [x],
        {"noop_with_empty_axes": 1},
        label="no axes",
        torch=lambda x: FUNCTIONS[name](x.unsqueeze(0), (0,), False),
    )


TIES = np.array([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]])
WITH_ZEROS = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]])

CASES = [
    *(
        reduction(name, axes, keepdims)
        for name in FUNCTIONS
        for axes in ALL
        for keepdims in (0, 1)
        if (name, axes) != ("ReduceProd", [0, 2])
    ),
    *(without_axes(name, normal(2, 3)) for name in ("ReduceSum", "ReduceMax")),
    reduction("ReduceMax", [1], 0, TIES, smooth=False),
    reduction("ReduceMin", [0, 1], 0, TIES, smooth=False),
    reduction("ReduceL2", [1], 0, np.zeros((2, 2)), smooth=False),
    reduction("ReduceProd", [1], 0, WITH_ZEROS),
    reduction("ReduceSum", [0], 0, normal(3)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


def test_a_product_over_separate_axes_is_refused():
    with pytest.raises(DistIRError, match=r"neighbouring axes, not \[0, 2\]"):
        backward_program(reduction("ReduceProd", [0, 2], 1), frozenset([0]))
