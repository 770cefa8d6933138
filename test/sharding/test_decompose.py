"""Ops as others that can be split where they cannot."""

from __future__ import annotations

import numpy as np
import pytest
from support.sharding_cases import CASES
from support.sharding_harness import Case, sequential
from support.train_cases import CASES as TRAIN_CASES
from xdsl.dialects.builtin import StringAttr

from distir.sharding.decompose import decompose
from distir.sharding.rule import rule_for
from distir.testing.runs import check_parts

SUMS = ("Gemm", "Conv", "ConvTranspose")
RECURRENT = ("GRU", "LSTM", "RNN")
LABELLED = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name in (*SUMS, *LABELLED, *RECURRENT)], ids=str
)
def test_decomposed_ops_compute_the_same(case: Case):
    plain = sequential(case)
    plain.op.attributes["scope"] = StringAttr("h.0.mlp")
    ops = decompose(plain.op)
    assert (ops is None) == (not plain.rule.decomposed)
    if ops is None:
        return
    assert not any(rule_for(op).decomposed for op in ops)
    assert {op.attributes["scope"] for op in ops} == {StringAttr("h.0.mlp")}
    assert ops[-1].results[0].type == plain.op.results[0].type
    check_parts(plain, ops)


LOSSES = ("train.cross_entropy", "train.cross_entropy_grad")


@pytest.mark.parametrize("case", [c for c in TRAIN_CASES if c.name in LOSSES], ids=str)
def test_losses_in_steps_compute_the_same(case: Case):
    plain = sequential(case)
    classes = plain.op.operands[
        plain.rule.operands.index(max(plain.rule.operands, key=len))
    ]
    ops = decompose(plain.op)
    assert ops is not None
    for op in ops:
        rule = rule_for(op)
        assert not rule.decomposed
        # Each step may be split over the classes.
        for operand, dims in zip(op.operands, rule.operands, strict=True):
            if operand is classes:
                (factor,) = dims[-1]
                assert rule.factors[factor].kind != "replicate"
    check_parts(plain, ops)


STEPWISE = ("train.gru_grad", "train.lstm_grad", "train.rnn_grad")


@pytest.mark.parametrize(
    "case", [c for c in TRAIN_CASES if c.name in STEPWISE], ids=str
)
def test_gradients_that_gather_states_compute_the_same(case: Case):
    plain = sequential(case)
    ops = decompose(plain.op)
    assert ops is not None
    check_parts(plain, ops)


def test_other_ops_have_no_decomposition():
    x = np.zeros((2, 2), np.float32)
    assert decompose(sequential(Case("Add", [x, x])).op) is None
    assert decompose(sequential(Case("MatMul", [x, x])).op) is None
