"""Every rule of a train op against what the op computes, for the splits it allows."""

from __future__ import annotations

import pytest
from support.cases import named
from support.sharding_harness import (
    assert_partial_operands,
    assert_splits,
    of_each_op,
    sequential,
)
from support.train_cases import CASES

OPS = of_each_op(CASES)


@pytest.mark.parametrize("op", OPS)
def test_a_rule(op: str):
    for case in OPS[op]:
        with named(case):
            plain = sequential(case)
            assert_splits(plain)
            # In half precision terms of a sum round otherwise than the sum.
            if all(a is None or a.dtype != "f2" for a in case.inputs):
                assert_partial_operands(plain)
