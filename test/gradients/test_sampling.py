"""Gradients of sampling at the points of a grid, of images and volumes."""

import pytest
import torch.nn.functional as F
from gradients.harness import GradientCase, check, normal
from support.thoroughness import sampled

from distir.dialects.train_ops.resampling import PADDINGS

IN_TORCH = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def grid_sample(mode, padding, aligned, space=(4, 5), points=(3, 2)):
    x = normal(2, 3, *space)
    # Points far outside too, where reflections turn several times.
    grid = 1.7 * normal(2, *points, len(space), seed=1)
    return GradientCase(
        "GridSample",
        [x, grid],
        {"mode": mode, "padding_mode": padding, "align_corners": int(aligned)},
        torch=lambda x, grid: F.grid_sample(x, grid, IN_TORCH[mode], padding, aligned),
        label=f"{mode}-{padding}-{aligned}-{list(space)}",
    )


CASES = [
    grid_sample(mode, padding, aligned, space)
    for mode in IN_TORCH
    for padding in PADDINGS
    for aligned in (False, True)
    for space in ((4, 5), (1, 3))
] + [
    grid_sample(mode, padding, False, (2, 3, 4), (2, 1, 3))
    for mode in ("linear", "nearest")
    for padding in reversed(PADDINGS)
]


@pytest.mark.parametrize("case", sampled(CASES, 3), ids=str)
def test_gradient(case):
    check(case)
