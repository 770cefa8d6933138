"""Costs that need no cluster: what they count, and searches by them."""

from __future__ import annotations

import numpy as np
import pytest
from support.programs import parse
from support.training_programs import training_gpt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType, f32

from distir.dialects.dist import Layout, Shard
from distir.errors import DistIRError
from distir.frontends.models.basic import build_mlp
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.search_sharding import SearchShardingPass
from distir.planning.annotations import read_notes, requested_layout
from distir.planning.layouts.search import LayoutResult, Limits, search_sharding
from distir.planning.meshes import add_mesh
from distir.planning.strategies import Strategy
from distir.planning.unit_costs import GATHER_PENALTY, PREFERENCE, UnitCosts
from distir.program import argument_attributes, argument_names, entry_function
from distir.sharding.mesh import Mesh
from distir.sharding.placement import REPLICATED, PartialPlacement, SplitPlacement
from distir.sharding.prices import PRICE_PER_BYTE_SENT, PRICE_PER_BYTE_TOUCHED
from distir.sharding.rule import rule_for

MESH = Mesh("mesh", (("d", 2), ("t", 4)), tuple(range(8)))
ROWS = Layout("mesh", ((Shard("t"),), ()))
COLUMNS = Layout("mesh", ((), (Shard("t"),)))
SUM = Layout("mesh", (), (("t", "sum"),))
WHOLE = Layout("mesh")


def test_an_op_counts_operations_and_bytes_on_one_device() -> None:
    module = parse(
        """
        func.func @main(%a: tensor<8x16xf32>, %b: tensor<16x32xf32>) -> tensor<8x32xf32> {
          %c = onnx.MatMul(%a, %b) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
          func.return %c : tensor<8x32xf32>
        }
        """
    )
    op = entry_function(module).body.block.first_op
    assert op is not None
    flops, rule = 2 * 8 * 16 * 32, rule_for(op)
    strategy = Strategy((), (COLUMNS, ROWS), (SUM,))
    found = UnitCosts(MESH).op(op, rule, strategy)
    touched = 4 * (8 * 16 / 4 + 16 * 32 / 4 + 8 * 32)
    assert found == flops / 4 + PRICE_PER_BYTE_TOUCHED * touched
    # The same on the axis alone, which `distribute` plans.
    assert found == UnitCosts(MESH).work(flops / 4, touched)


@pytest.mark.parametrize(
    ("before", "after", "bytes_sent"),
    [
        (SUM, WHOLE, 2 * 3 / 4 * 256),
        (SUM, ROWS, 3 / 4 * 256),
        (ROWS, WHOLE, GATHER_PENALTY * 3 / 4 * 256),
        (ROWS, COLUMNS, GATHER_PENALTY * 3 / 4 * 256 / 4),
        (WHOLE, ROWS, PREFERENCE * GATHER_PENALTY * 3 / 4 * 256),
        (WHOLE, SUM, float("inf")),
        (ROWS, ROWS, 0),
    ],
)
def test_a_change_of_layout_counts_what_is_sent(
    before: Layout, after: Layout, bytes_sent: float
) -> None:
    """For all axes at once, and for one of them."""
    costs, type_ = UnitCosts(MESH), TensorType(f32, (8, 8))
    price = pytest.approx(PRICE_PER_BYTE_SENT * bytes_sent)
    assert costs.reshard(type_, before, after) == price
    placements = {
        SUM: PartialPlacement("sum"),
        ROWS: SplitPlacement(0),
        COLUMNS: SplitPlacement(1),
        WHOLE: REPLICATED,
    }
    assert costs.move(placements[before], placements[after], 256, 4) == price


def searched(module: ModuleOp, *axes: str, **options: object) -> ModuleOp:
    """Distributed without a cluster, and verified."""
    given = {"axes": axes, "costs": "unit", **options}
    SearchShardingPass(**given).apply(Context(), module)  # type: ignore[arg-type]
    return module


def test_a_program_is_searched_without_a_cluster() -> None:
    """Both axes split the work, and the program computes the same."""
    module = training_gpt()
    sequential = module.clone()
    searched(module, "d=2", "t=2")
    (note,) = (n for n in read_notes(module) if n.startswith("search-sharding"))
    assert "operations of work and communication" in note
    arguments = random_arguments(sequential, seed=0)
    for a, b in zip(
        run_program(sequential, arguments), run_program(module, arguments), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def mlp_within(memory: float | None) -> tuple[LayoutResult, set[str]]:
    """What is found for two layers on 4 devices, and the arguments that are split."""
    module = build_mlp(layers=2, d_model=64, batch=1024)
    found = search_sharding(
        module, UnitCosts(add_mesh(module, [("d", 4)], None)), Limits(memory)
    )
    function = entry_function(module)
    names, given = argument_names(function), argument_attributes(function)
    requests = zip(names, map(requested_layout, given), strict=True)
    return found, {name for name, x in requests if x and x.split_axes}


def test_unit_costs_keep_a_limit_of_memory() -> None:
    """A large batch is split and the weights are not, unless they are too many bytes."""
    free, split = mlp_within(None)
    assert split == {"input"}
    tight, split = mlp_within(0.95 * free.peak)
    assert tight.peak <= 0.95 * free.peak and tight.objective > free.objective
    assert "input" in split and any("weight" in name for name in split)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 2, "k": 2}, "unit costs know neither profiles of devices nor pipelines"),
        ({"profile": ("A100",)}, "unit costs know neither profiles"),
        ({"costs": "guessed"}, "there is no costs 'guessed'; choose one of simulated"),
        ({"costs": "simulated"}, "name one with `cluster=`, or choose costs=unit"),
        ({"memory": 100.0}, "no layouts fit into 100 bytes per device"),
    ],
)
def test_what_unit_costs_do_not_know_is_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(DistIRError, match=message):
        searched(build_mlp(layers=1, d_model=8, batch=8), "d=2", **options)
