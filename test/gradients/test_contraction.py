"""Gradients of matrix products and other contractions."""

import re

import numpy as np
import pytest
import torch
from gradients.harness import GradientCase, backward_program, check, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import ops_of
from support.thoroughness import tries
from xdsl.context import Context

from distir.dialects.collective_ops.base import CollectiveOp
from distir.errors import DistIRError
from distir.passes.distribute import DistributePass


def matmul(a, b):
    return GradientCase(
        "MatMul", [normal(*a, seed=1), normal(*b, seed=2)], torch=torch.matmul
    )


def gemm(trans_a, trans_b, bias=None, alpha=1.0, beta=1.0, rows=2):
    a, b = normal(rows, 3, seed=1), normal(3, 4, seed=2)

    def run(a, b, c=0.0):
        product = (a.t() if trans_a else a) @ (b.t() if trans_b else b)
        return alpha * product + beta * c

    return GradientCase(
        "Gemm",
        [
            a.T.copy() if trans_a else a,
            b.T.copy() if trans_b else b,
            *([] if bias is None else [normal(*bias, seed=3)]),
        ],
        {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta},
        torch=run,
        label=f"{trans_a}{trans_b}{bias}{alpha}",
    )


def einsum(equation, *shapes):
    return GradientCase(
        "Einsum",
        [normal(*s, seed=i) for i, s in enumerate(shapes)],
        {"equation": equation},
        torch=lambda *tensors: torch.einsum(equation, *tensors),
        label=equation,
    )


CASES = [
    matmul((2, 3), (3, 4)),
    matmul((3,), (3,)),
    matmul((3,), (3, 4)),
    matmul((2, 3), (3,)),
    matmul((2, 2, 3), (3, 4)),
    matmul((2, 2, 1, 3), (3, 4)),
    matmul((2, 3), (5, 3, 2)),
    matmul((2, 2, 3), (2, 3, 2)),
    matmul((2, 1, 2, 3), (1, 3, 3, 2)),
    matmul((2, 1, 3), (2, 2, 3, 1)),
    matmul((1, 2, 3), (2, 3, 2)),
    matmul((3,), (2, 3, 2)),
    matmul((2, 2, 3), (3,)),
    matmul((2, 1, 2, 3), (3,)),
    *(gemm(a, b) for a in (0, 1) for b in (0, 1)),
    *(gemm(a, b, (4,), 0.5, 0.25) for a in (0, 1) for b in (0, 1)),
    *(gemm(0, 1, bias) for bias in [(), (1,), (2, 1), (1, 4), (2, 4)]),
    einsum("ij,jk->ik", (2, 3), (3, 4)),
    einsum("bhqd,bhkd->bhqk", (2, 2, 3, 2), (2, 2, 4, 2)),
    einsum("bsd,dhe->bhse", (2, 3, 4), (4, 2, 2)),
    einsum("ij->ji", (2, 3)),
    einsum("ij->i", (2, 3)),
    einsum("ij->", (2, 3)),
    einsum("ij,kl->jk", (2, 3), (4, 2)),
    einsum("i,j->ij", (2,), (3,)),
    einsum("ij,jk,kl->il", (2, 3), (3, 2), (2, 3)),
    einsum("ij,jk", (2, 3), (3, 2)),
    einsum("...ij,...jk->...ik", (2, 1, 2, 3), (3, 3, 2)),
    einsum("...i,i->...", (2, 2, 3), (3,)),
    einsum("...ij", (2, 2, 3)),
    einsum("ij,ij->i", (1, 3), (2, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


@st.composite
def factors(draw):
    """The shapes of two operands of a matrix product."""
    row, inner, column = (draw(st.integers(1, 3)) for _ in range(3))
    batch = draw(st.lists(st.integers(1, 3), max_size=2))

    def leading():
        kept = batch[draw(st.integers(0, len(batch))) :]
        return tuple(draw(st.sampled_from([1, n])) for n in kept)

    a = draw(st.sampled_from([(inner,), (*leading(), row, inner)]))
    b = draw(st.sampled_from([(inner,), (*leading(), inner, column)]))
    return a, b


@settings(max_examples=tries(40), deadline=None)
@given(factors())
def test_any_shapes(shapes):
    check(matmul(*shapes))


def test_the_gradient_of_a_weight_is_one_product_over_all_rows():
    module, _ = backward_program(matmul((2, 3, 4), (4, 5)), frozenset([0]))
    products = ops_of(module, "Gemm")
    assert [op.operands[0].type.get_shape() for op in products] == [(6, 5), (6, 4)]
    assert [op.results[0].type.get_shape() for op in products] == [(6, 4), (4, 5)]
    assert not ops_of(module, "Transpose", "ReduceSum")


def test_a_diagonal_is_refused():
    case = GradientCase("Einsum", [np.eye(3)], {"equation": "ii->i"})
    with pytest.raises(DistIRError, match=re.escape("onnx.Einsum: the equation")):
        backward_program(case, frozenset([0]))


@pytest.mark.parametrize(
    ("case", "split", "gradient_split"),
    [
        (matmul((4, 3), (3, 5)), 0, 0),
        (matmul((4, 2, 3), (3, 5)), 0, 0),
        (matmul((3, 4, 3), (3, 5)), 1, 1),
        (matmul((2, 2, 4, 3), (3, 5)), 2, 2),
        (gemm(0, 0, rows=8), 0, 0),
        (gemm(1, 1, rows=8), 1, 0),
        (einsum("bsd,dhe->bhse", (2, 3, 4), (4, 2, 2)), 0, 0),
        (einsum("bsd,dhe->bhse", (3, 4, 4), (4, 2, 2)), 1, 2),
    ],
    ids=str,
)
def test_split_rows_give_partial_sums_of_the_weight_gradient(
    case, split, gradient_split
):
    """One all-reduce, of the gradient of the weight; nothing else is communicated."""
    module, _ = backward_program(case, frozenset([0]))
    requests = (f"arg0:{split}=t", f"arg2:{gradient_split}=t")
    DistributePass(t=2, shard=requests).apply(Context(), module)
    moved = [op for op in module.walk() if isinstance(op, CollectiveOp)]
    assert [op.name for op in moved] == ["collective.all_reduce"]
    assert moved[0].results[0].type.get_shape() == case.inputs[1].shape
