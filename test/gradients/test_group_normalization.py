"""Gradients of normalisation over the channels and positions of one sample."""

import numpy as np
import pytest
import torch.nn.functional as F
from gradients.harness import GradientCase, check, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import tries

F64 = 11
"""ONNX's number of f64: statistics are kept in f32 by default."""
EPSILON = float(np.float32(1e-5))


def group_norm_case(x, groups, epsilon=EPSILON):
    def run(x, scale, bias):
        if x[0, 0].numel() * (x.shape[1] // groups) * len(x) == 1:
            return x * 0 + bias.reshape(-1, *[1] * (x.dim() - 2))  # which torch refuses
        return F.group_norm(x, groups, scale, bias, float(np.float32(epsilon)))

    attributes = {"num_groups": groups, "epsilon": epsilon, "stash_type": F64}
    inputs = [normal(*x), normal(x[1], seed=1), normal(x[1], seed=2)]
    return GradientCase("GroupNormalization", inputs, attributes, torch=run)


def instance_norm_case(x, epsilon=EPSILON):
    def run(x, scale, bias):
        return F.instance_norm(
            x, weight=scale, bias=bias, eps=float(np.float32(epsilon))
        )

    inputs = [normal(*x), normal(x[1], seed=1), normal(x[1], seed=2)]
    return GradientCase(
        "InstanceNormalization", inputs, {"epsilon": epsilon}, torch=run
    )


CASES = [
    group_norm_case((2, 4, 3), 2),
    group_norm_case((2, 4, 2, 3), 1),
    group_norm_case((2, 4, 2, 2), 4, epsilon=0.5),
    group_norm_case((3, 6, 2), 3),
    group_norm_case((2, 6), 2),
    instance_norm_case((2, 3, 4)),
    instance_norm_case((2, 4, 2, 3), epsilon=0.5),
    instance_norm_case((1, 2, 2, 1, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


@settings(max_examples=tries(20))
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.integers(1, 3), min_size=1, max_size=2),
)
def test_random_shapes(batch, groups, each, space):
    # A large epsilon, so that groups of one element do not divide by nearly nothing.
    check(group_norm_case((batch, groups * each, *space), groups, epsilon=0.5))
