"""Every rule against what the op computes, for all kinds of splits it allows."""

from __future__ import annotations

import pytest
from support.sharding_cases import CASES
from support.sharding_harness import (
    Case,
    assignments,
    mesh,
    partial_assignments,
    run_distributed,
    sample,
    sequential,
)
from support.thoroughness import tries

from distir.dialects.tensors import shape_of
from distir.sharding.rule import sharding_rule

SAMPLES = tries(20)
"""Splits that are run per case, out of all legal ones."""


def test_every_rule_has_a_case():
    names = sharding_rule.entries
    ruled = {n.removeprefix("onnx.") for n in names if n.startswith("onnx.")}
    assert ruled == {case.name for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_factors_make_up_the_dimensions(case: Case):
    plain = sequential(case)
    rule = plain.rule
    for values, dims_of in (
        (plain.op.operands, rule.operands),
        (plain.op.results, rule.results),
    ):
        assert len(values) == len(dims_of)
        for value, dims in zip(values, dims_of, strict=True):
            sizes = shape_of(value.type)
            assert len(sizes) == len(dims)
            for size, dim in zip(sizes, dims, strict=True):
                product = 1
                for factor in dim:
                    product *= rule.factors[factor].size
                assert dim == () or product == size
    for factor in rule.result_factors:
        assert rule.factors[factor].kind != "reduction"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_splits(case: Case):
    plain = sequential(case)
    for on in (mesh(a=2, b=3), mesh(a=2, b=2)):
        for assignment in sample(list(assignments(plain.rule, on)), SAMPLES, str(case)):
            run_distributed(plain, on, assignment)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_partial_operands(case: Case):
    plain = sequential(case)
    on = mesh(a=2, b=3)
    for assignment, operands, monoid in partial_assignments(plain, on):
        run_distributed(plain, on, assignment, operands, monoid)
