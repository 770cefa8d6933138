"""The CTC loss and its gradient against PyTorch's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradients.harness import (
    GradientCase,
    check,
    forward_program,
    integers,
    normal,
    operands_of,
)

from distir.dialects.train_ops.losses import CtcLossOp
from distir.interpreters.reference import run_program

STEPS, SAMPLES, CLASSES = 7, 5, 4


def ctc(targets, steps, labels, blank=0, zero_infinity=False):
    """
    Scores whose log-softmax the loss takes: with respect to the logarithms alone PyTorch's
    gradient is not the derivative.
    """
    scores = torch.tensor(normal(STEPS, SAMPLES, CLASSES))

    def run(x, targets, steps, labels):
        return F.ctc_loss(
            *(x, targets, steps, labels, blank),
            reduction="none",
            zero_infinity=zero_infinity,
        )

    return GradientCase(
        CtcLossOp.name,
        [scores.log_softmax(-1).numpy(), *map(integers, (targets, steps, labels))],
        make=lambda operands: CtcLossOp(
            *operands, blank=blank, zero_infinity=zero_infinity
        ),
        torch=run,
        smooth=False,
        label=f"{blank}-{zero_infinity}-{steps}-{labels}",
    )


TARGETS = [[1, 2, 3], [1, 1, 1], [3, 3, 2], [2, 1, 2], [3, 1, 1]]
OTHER_BLANK = [[0, 1, 2], [0, 0, 0], [2, 2, 1], [1, 0, 1], [2, 0, 0]]

CASES = [
    ctc(TARGETS, [7, 7, 6, 5, 7], [3, 3, 2, 1, 0]),
    ctc(OTHER_BLANK, [7, 7, 6, 5, 7], [3, 3, 2, 1, 0], blank=3),
    ctc(TARGETS, [7, 4, 2, 1, 3], [3, 3, 3, 1, 0], zero_infinity=True),
    ctc(TARGETS, [7, 7, 6, 5, 7], [3, 3, 2, 1, 0], zero_infinity=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


def test_an_infinite_loss():
    """Three equal labels take five steps, and three others three."""
    case = ctc(TARGETS, [7, 4, 2, 1, 3], [3, 3, 3, 1, 0])
    (found,) = run_program(forward_program(case), operands_of(case))
    theirs = case.torch(*map(torch.tensor, case.inputs)).numpy()
    assert np.isinf(found).tolist() == [False, True, True, False, False]
    np.testing.assert_allclose(found, theirs)
