"""The conventions of programs."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects import test
from xdsl.dialects.builtin import Builtin, i64
from xdsl.parser import Parser

from distir.program import name_hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("layers.0.weight", "layers.0.weight"),
        ("/layer/Add_output_0", "Add_output_0"),
        ("onnx::MatMul_12", "MatMul_12"),
        ("0.weight", "_0_weight"),
        ("0_weight_exp_avg", "_0_weight_exp_avg"),
        ("dénse/kernel:0", "kernel_0"),
        ("wéight", "w_ight"),
        ("12", None),
        ("é", None),
        ("", None),
    ],
)
def test_hints_are_names_that_can_be_read_back(name: str, hint: str | None):
    assert name_hint(name) == hint
    op = test.TestOp(result_types=[i64])
    op.results[0].name_hint = name_hint(name)
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(test.Test)
    read = Parser(context, str(op)).parse_op()
    assert read.results[0].name_hint == op.results[0].name_hint
