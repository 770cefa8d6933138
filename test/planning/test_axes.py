"""The plan for one mesh axis: a graph of strategies, which is small for layers that repeat."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.builders import build_gpt
from distir.hardware import load_cluster
from distir.passes.differentiate import DifferentiatePass
from distir.planning.axes.axis import AxisPlanner
from distir.planning.axes.axis_plan import (
    ArgumentKey,
)
from distir.planning.axes.sharding_plan import ShardingPlan
from distir.planning.meshes import add_mesh
from distir.planning.programs import replace_cluster
from distir.sharding.placement import (
    Placement,
)


def gpt(layers: int, trains: bool) -> ModuleOp:
    module = build_gpt(layers, d_model=64, heads=4, vocab=128, batch=8, seq=16)
    replace_cluster(module, load_cluster("dgx2"))
    if trains:
        DifferentiatePass().apply(Context(), module)
    return module


def nodes_of_step(layers: int) -> int:
    """The choices in the graph of a training step of a GPT."""
    module = gpt(layers, trains=True)
    mesh = add_mesh(module, [("t", 2)], None)
    whole: ArgumentKey = (Placement("whole"), "activation")
    program = ShardingPlan(module, mesh).seen_by("t")
    planner = AxisPlanner(program, split_parameters=False)
    planner.solve([whole] * len(program.entry.body.block.args))
    return planner.nodes


def test_a_graph_does_not_grow_with_layers_that_repeat() -> None:
    """Those between the first and the last decide alike, with all that belongs to them."""
    assert nodes_of_step(8) == nodes_of_step(12)
