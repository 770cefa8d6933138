"""Ops of dialects that are not installed are known by their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp

from distir.extension import Cost, OpSupport, register_op
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.lowering.emitter import emitter_for, torch_emitter
from distir.planning.distribution.distribute import distribute
from distir.planning.distribution.options import DistributionOptions
from distir.program import describe, entry_function
from distir.sharding.verification import verify_distribution
from distir.testing import check_op
from distir.text.parser import ProgramParser
from distir.universe import DISTIR_UNIVERSE

PROGRAM = """
func.func @main(%x: tensor<8x16xf32> {dist.role = "input"}, %w: tensor<16x4xf32> {dist.role = "parameter"}) -> tensor<8x4xf32> {
  %y = "far.product"(%x, %w) <{scale = 3 : i64}> : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
"""


def product(op: Any, x: Any, w: Any) -> Any:
    return op.properties["scale"].value.data * (x @ w)


@pytest.fixture(autouse=True)
def far() -> Iterator[None]:
    """`far.product` is known, as long as a test runs."""
    support = OpSupport(
        rule="m k, k n -> m n linear 0, 1 flops 2*m*k*n",
        reference=product,
        cost=lambda context: Cost(context.flops),
        torch="{scale} * ({0} @ {1})",
    )
    register_op("far.product", support)
    yield
    for registry, _ in support.entries:
        registry.entries.pop("far.product")


def parse() -> ModuleOp:
    context = Context(allow_unregistered=True)
    for name, dialect in {**get_all_dialects(), **DISTIR_UNIVERSE.all_dialects}.items():
        context.register_dialect(name, dialect)
    return ProgramParser(context, PROGRAM).parse_module()


def test_it_is_checked() -> None:
    op = entry_function(parse()).body.block.first_op
    assert op is not None and describe(op) == "far.product %y"
    report = check_op(op)
    assert report.name == "far.product" and report.torch and report.splits > 60
    assert emitter_for(op) is torch_emitter.get("far.product")


def test_it_is_distributed_and_simulated() -> None:
    module = parse()
    inputs = [np.ones((8, 16), np.float32), np.full((16, 4), 2, np.float32)]
    expected = run_program(module, inputs)[0]
    assert (expected == 96).all()
    distribute(module, DistributionOptions(cluster="cpu", d=2, t=2))
    verify_distribution(module)
    assert "sharding rule" not in str(module) and "[{d}, {t}]" in str(module)
    np.testing.assert_array_equal(run_program(module, inputs)[0], expected)
    assert simulate(module).step_time_s >= 2 * 8 * 16 * 4 / 4
