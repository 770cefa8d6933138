"""Soft and hard shrinkage against PyTorch's gradients."""

import numpy as np
import pytest
import torch.nn.functional as F
from gradients.harness import GradientCase, check, normal

X = normal(5, 3) * 2
AT_LIMITS = np.array([-0.5, 0.0, 0.5, 0.75])

CASES = [
    GradientCase("Shrink", [X], {"bias": 0.5, "lambd": 0.5}, torch=lambda x: F.softshrink(x, 0.5)),
    GradientCase("Shrink", [X], {"lambd": 0.75}, torch=lambda x: F.hardshrink(x, 0.75)),
    GradientCase(
        "Shrink", [AT_LIMITS], {"lambd": 0.5},
        torch=lambda x: F.hardshrink(x, 0.5), smooth=False, label="at the limits",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: GradientCase):
    check(case)
