"""Every rule of a train op against what the op computes, for the splits it allows."""

from __future__ import annotations

import pytest
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
from support.train_cases import CASES

SAMPLES = tries(20)
"""Splits that are run per case, out of all legal ones."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_splits(case: Case):
    plain = sequential(case)
    for on in (mesh(a=2, b=3), mesh(a=2, b=2)):
        for assignment in sample(list(assignments(plain.rule, on)), SAMPLES, str(case)):
            run_distributed(plain, on, assignment)


_EXACT = [c for c in CASES if all(a is None or a.dtype != "f2" for a in c.inputs)]
"""Without half precision, in which terms of a sum round otherwise than the sum."""


@pytest.mark.parametrize("case", _EXACT, ids=str)
def test_partial_operands(case: Case):
    plain = sequential(case)
    on = mesh(a=2, b=3)
    for assignment, operands, monoid in partial_assignments(plain, on):
        run_distributed(plain, on, assignment, operands, monoid)
