"""Gradients of batch normalisation in training and in inference."""

import numpy as np
import pytest
import torch.nn.functional as F
from gradients.harness import GradientCase, backward_program, check, normal, uniform

from distir.errors import DistIRError

EPSILON = float(np.float32(1e-5))


def batch_norm_case(x, training=False, epsilon=EPSILON):
    """A case on an input of that shape."""
    values = [normal(x[1], seed=i) for i in (1, 2, 3)]
    inputs = [normal(*x), *values, uniform(x[1], seed=4)]
    attributes = {"training_mode": int(training), "epsilon": epsilon}

    def run(x, scale, bias, mean, variance):
        if training:
            return F.batch_norm(x, None, None, scale, bias, True, eps=epsilon)
        return F.batch_norm(x, mean, variance, scale, bias, eps=epsilon)

    def inference(x, scale, bias, mean, variance):
        """torch has no gradients of the statistics; these formulas do."""
        shape = (-1, *[1] * (x.dim() - 2))
        scale, bias, mean, variance = (
            v.reshape(shape) for v in (scale, bias, mean, variance)
        )
        return (x - mean) / (variance + epsilon).sqrt() * scale + bias

    return GradientCase(
        "BatchNormalization",
        inputs,
        attributes,
        torch=run if training else inference,
    )


CASES = [
    batch_norm_case((3, 2, 2)),
    batch_norm_case((3, 2)),
    batch_norm_case((2, 3, 2, 2), epsilon=0.5),
    batch_norm_case((3, 2, 2), training=True),
    batch_norm_case((4, 2), training=True),
    batch_norm_case((2, 3, 2, 2), training=True, epsilon=0.5),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


def test_running_statistics_have_no_gradient():
    inputs = [normal(3, 2), *[normal(2)] * 3, uniform(2)]
    case = GradientCase("BatchNormalization", inputs, {"training_mode": 1}, results=3)
    with pytest.raises(DistIRError, match="a loss cannot depend on them"):
        backward_program(case, frozenset([1]))
