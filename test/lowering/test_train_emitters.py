"""The PyTorch of every train op against its reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
from support.cases import named
from support.lowering_cases import program_of, run_here
from support.sharding_harness import Case, of_each_op, sequential
from support.train_cases import CASES

OPS = of_each_op(CASES)


@pytest.mark.parametrize("op", OPS)
def test_torch_equals_the_reference(op: str):
    for case in OPS[op]:
        with named(case):
            assert_torch_equals_the_reference(case)


def assert_torch_equals_the_reference(case: Case) -> None:
    plain = sequential(case)
    module = program_of(plain)
    module.verify()
    found = run_here(module, plain.operands)
    for ours, expected in zip(found, plain.results, strict=True):
        assert ours.dtype == expected.dtype
        assert ours.shape == expected.shape
        # Booleans (masks) must be the same.
        tolerance = {1: 0.0, 2: 2e-3, 4: 2e-5, 8: 1e-10}[expected.dtype.itemsize]
        np.testing.assert_allclose(
            ours.astype(np.float64),
            expected.astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
        )
