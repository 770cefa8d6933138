"""The plan for one mesh axis: a graph of strategies, which is small for layers that repeat."""

from __future__ import annotations

from itertools import pairwise

from support.moe_programs import moe_step
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllToAllOp
from distir.dialects.tensors import shape_of
from distir.frontends.models.basic import build_gpt, build_mlp, build_moe
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.axes.axis import AxisPlanner
from distir.planning.axes.reach import ArgumentKey
from distir.planning.axes.sharding_plan import ShardingPlan
from distir.planning.distribution.meshes import add_mesh
from distir.planning.plans.programs import replace_cluster
from distir.program import entry_function
from distir.sharding.placement import REPLICATED


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
    whole: ArgumentKey = (REPLICATED, "activation")
    program = ShardingPlan(module, mesh).seen_by("t")
    planner = AxisPlanner(program, split_parameters=False)
    planner.solve([whole] * len(program.entry.body.block.args))
    return planner.nodes


def test_a_graph_does_not_grow_with_layers_that_repeat() -> None:
    """Those between the first and the last decide alike, with all that belongs to them."""
    assert nodes_of_step(8) == nodes_of_step(12)


def bytes_sent(layers: int) -> int:
    """By each of 4 devices that split the parameters of a step of an MLP."""
    module = build_mlp(layers, d_model=256, batch=64)
    replace_cluster(module, load_cluster("dgx2"))
    DifferentiatePass().apply(Context(), module)
    DistributePass(t=4).apply(Context(), module)
    return simulate(module).communication_bytes[0]


def test_layers_of_an_mlp_take_turns() -> None:
    """
    One has its matrix by columns, the next one by rows, however many there are: two more
    layers add an all-reduce of their activations to the forward, and one to the backward.
    """
    all_reduce = 2 * 3 * (64 * 256 * 4) // 4
    sent = [bytes_sent(layers) for layers in (6, 8, 10, 12)]
    assert [b - a for a, b in pairwise(sent)] == [2 * all_reduce] * 3


def test_experts_exchange_parts() -> None:
    """
    Devices have some of the experts, and the products with the mask are split along the
    width: what experts give is exchanged for that, and what is within them stays where it is.
    """
    module = moe_step(2, groups=8, tokens=64, width=128, experts=4, slots=32)
    replace_cluster(module, load_cluster("dgx2"))
    DistributePass(t=4).apply(Context(), module)
    ops = list(entry_function(module).body.block.ops)
    moved = [op for op in ops if isinstance(op, CollectiveOp)]
    assert any(isinstance(op, AllToAllOp) for op in moved)
    within_experts = (4, 8, 32, 4 * 128)
    assert within_experts not in [shape_of(op.results[0].type) for op in moved]


def test_experts_split_like_their_parameters() -> None:
    """
    Dispatching to experts is work on activations alone: it is not worth an exchange of what
    the experts' hidden layers hold.
    """
    module = build_moe(2, 256, 4, 8, 512, 32, 64, ffn=1024)
    DifferentiatePass().apply(Context(), module)
    DistributePass(t=2).apply(Context(), module)
    assert not any(isinstance(op, AllToAllOp) for op in module.walk())
