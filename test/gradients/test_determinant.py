"""Gradients of determinants and of their logarithms."""

import numpy as np
import pytest
import torch
from gradients.harness import GradientCase, backward_program, check, normal, run_program

from distir.dialects.train_ops.determinant import SlogdetOp

SINGULAR = np.array([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]])


def slogdet(x):
    return GradientCase(
        SlogdetOp.name,
        [x],
        make=lambda operands: SlogdetOp(*operands),
        results=2,
        torch=torch.linalg.slogdet,
        label=str(list(x.shape)),
    )


CASES = [
    slogdet(normal(3, 3)),
    slogdet(normal(2, 4, 4)),
    slogdet(-normal(2, 2, 1, 1)),
    GradientCase("Det", [normal(2, 3, 3)], torch=torch.linalg.det),
    GradientCase(
        "Det", [SINGULAR], torch=torch.linalg.det, smooth=False, label="singular"
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


def test_a_singular_matrix_has_no_gradient_of_its_logarithm():
    case = slogdet(SINGULAR)
    backward, _ = backward_program(case, frozenset([1]))
    (found,) = run_program(backward, [SINGULAR, np.ones(2)])
    theirs = torch.tensor(SINGULAR, requires_grad=True)
    torch.linalg.slogdet(theirs)[1].sum().backward()
    assert not np.isfinite(found[0]).any() and not theirs.grad[0].isfinite().any()
    np.testing.assert_allclose(found[1], theirs.grad[1])
