"""Every rule against what the op computes, for all kinds of splits it allows."""

from __future__ import annotations

import pytest
from support.cases import named
from support.sharding_cases import CASES
from support.sharding_harness import (
    Sequential,
    assert_partial_operands,
    assert_splits,
    of_each_op,
    sequential,
)

from distir.dialects.tensors import shape_of
from distir.sharding.rule import sharding_rule


def test_every_rule_has_a_case():
    names = sharding_rule.entries
    ruled = {n.removeprefix("onnx.") for n in names if n.startswith("onnx.")}
    assert ruled == {case.name for case in CASES}


OPS = of_each_op(CASES)


@pytest.mark.parametrize("op", OPS)
def test_a_rule(op: str):
    """What it says of the op, and every split that it allows."""
    for case in OPS[op]:
        with named(case):
            plain = sequential(case)
            assert_factors_make_up_the_dimensions(plain)
            assert_splits(plain)
            assert_partial_operands(plain)


def assert_factors_make_up_the_dimensions(plain: Sequential) -> None:
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
