"""Gradients of running sums and products, with zeros among the factors too."""

import numpy as np
import pytest
import torch
from gradients.harness import GradientCase, check, normal


def running(name, x, axis, exclusive=0, reverse=0):
    def run(x, _):
        flip = (axis,) if reverse else ()
        x = x.flip(flip)
        if name == "CumSum":
            total = x.cumsum(axis)
            return (total - x if exclusive else total).flip(flip)
        if exclusive:
            x = _shifted(x, axis)
        return x.cumprod(axis).flip(flip)

    return GradientCase(
        name,
        [x, np.array(axis)],
        {"exclusive": exclusive, "reverse": reverse},
        frozenset([1]),
        torch=run,
        label=f"{list(x.shape)}-{axis}{exclusive}{reverse}-{np.sum(x == 0)}",
    )


def _shifted(x, axis):
    """A one in front of all factors but the last."""
    rest = x.narrow(axis, 0, x.shape[axis] - 1)
    return torch.cat([torch.ones_like(x.narrow(axis, 0, 1)), rest], axis)


ZEROS = np.array(
    [
        [0.0, 2.0, 3.0, -1.0],
        [2.0, 0.0, 3.0, 0.5],
        [2.0, 0.0, 0.0, 1.0],
        [2.0, 3.0, -1.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
    ]
)

CASES = [
    running(name, x, axis, exclusive, reverse)
    for name in ("CumSum", "CumProd")
    for x in (normal(2, 3), ZEROS)
    for axis in (0, 1)
    for exclusive in (0, 1)
    for reverse in (0, 1)
] + [running("CumProd", normal(2, 1, 3), 1, 1), running("CumProd", normal(4), 0)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)
