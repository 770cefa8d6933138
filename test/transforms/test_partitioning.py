"""Copies of values that several ops take in other layouts than the values have."""

from __future__ import annotations

import numpy as np
import pytest
from support.programs import parse
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute

from distir.dialects.collective_ops.over_axes import AllToAllOp, SliceOp
from distir.dialects.dist import Layout
from distir.interpreters.reference import run_program
from distir.program import entry_function
from distir.sharding.verification import verify_distribution
from distir.transforms.partitioning import Price, partition

ROWS, WHOLE, COLUMNS = "<@m, [{d}, {}]>", "<@m>", "<@m, [{}, {d}]>"


def program() -> ModuleOp:
    """%h is computed in rows, and taken whole, then in columns."""

    def given(*layouts: str) -> str:
        return f"[{', '.join(f'#dist.layout{layout}' for layout in layouts)}]"

    def does(operand: str, result: str) -> str:
        return (
            f"{{dist.operand_layouts = {given(operand)}, "
            f"dist.result_layouts = {given(result)}}} : (tensor<4x8xf32>) -> tensor<4x8xf32>"
        )

    return parse(
        f"""
        device.mesh @m on @box <d = 2> [0 to 2]
        func.func @main(%x: tensor<4x8xf32> {{dist.layout = #dist.layout{ROWS}}})
            -> (tensor<4x8xf32>, tensor<4x8xf32>) {{
          %h = onnx.Relu(%x) {does(ROWS, ROWS)}
          %a = onnx.Neg(%h) {does(WHOLE, WHOLE)}
          %b = onnx.Exp(%h) {does(COLUMNS, COLUMNS)}
          func.return {{dist.operand_layouts = {given(WHOLE, COLUMNS)}, dist.result_layouts = []}}
            %a, %b : tensor<4x8xf32>, tensor<4x8xf32>
        }}
        """
    )


def only_from_rows(type_: Attribute, before: Layout, after: Layout) -> float:
    """A price by which nothing is made from what is whole."""
    return 1.0 if before.split_axes else 2.0


@pytest.mark.parametrize(
    ("price", "kind"), [(None, SliceOp), (only_from_rows, AllToAllOp)]
)
def test_a_copy_is_made_from_the_one_with_the_lowest_price(
    price: Price | None, kind: type
) -> None:
    """By default from what needs no communication: the whole value is there already."""
    module = program()
    x = np.arange(-16, 16, dtype=np.float32).reshape(4, 8) / 8
    partition(module, lower=True, price=price)
    verify_distribution(module)
    (last,) = [
        op
        for op in entry_function(module).body.block.ops
        if isinstance(op, SliceOp | AllToAllOp)
    ]
    assert isinstance(last, kind)
    found = run_program(module, [x])
    h = np.maximum(x, 0)
    for value, expected in zip(found, (-h, np.exp(h)), strict=True):
        np.testing.assert_allclose(value, expected, 1e-6)
