"""What is communicated for each micro-batch is priced for each of them."""

from __future__ import annotations

from typing import Any

import pytest
from support.pipelines import arguments_of, assert_equal_results, distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.tensors import shape_of
from distir.frontends.models.basic import build_gpt
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.program import functions

ROWS = 64


def gathers_table(module: ModuleOp) -> bool:
    """Whether a function brings the table of embeddings together."""
    return any(
        isinstance(op, AllGatherOp) and shape_of(op.result.type) == (ROWS, 32)
        for function in functions(module).values()
        for op in function.body.block.ops
    )


@pytest.mark.parametrize(("k", "gathered"), [(2, True), (8, False)])
def test_a_table_stays_in_parts_where_there_are_many_micro_batches(
    k: int, gathered: bool
) -> None:
    """
    256 tokens look up a table of 64 rows that the output layer splits, and go on split
    along their sequences. Two micro-batches gather the table twice, which is 128 rows; for 8
    that were 512, and bringing tokens together is cheaper.
    """
    module = build_gpt(2, 32, 4, ROWS, 8, 32)
    DifferentiatePass().apply(Context(), module)
    options: dict[str, Any] = {"t": 2, "p": 2, "k": k, "sequence_parallel": True}
    program = distributed(module, **options)
    assert gathers_table(program) == gathered
    arguments = arguments_of(module)
    expected = run_program(module, arguments)
    assert_equal_results(program, expected, run_program(program, arguments), 1e-4)
