"""The PyTorch of every train op against its reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
from support.cases import named
from support.lowering_cases import run_here
from support.sharding_harness import Case, of_each_op, sequential
from support.train_cases import CASES
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Region

OPS = of_each_op(CASES)


@pytest.mark.parametrize("op", OPS)
def test_torch_equals_the_reference(op: str):
    for case in OPS[op]:
        with named(case):
            assert_torch_equals_the_reference(case)


def assert_torch_equals_the_reference(case: Case) -> None:
    plain = sequential(case)
    block = plain.op.parent_block()
    assert block is not None
    block.add_op(ReturnOp(*plain.op.results))
    types = FunctionType.from_lists(
        [a.type for a in block.args], [r.type for r in plain.op.results]
    )
    module = ModuleOp([FuncOp("main", types, Region(block))])
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
