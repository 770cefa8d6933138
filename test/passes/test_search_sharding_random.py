"""The search against everything that could be chosen, for small random programs."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from support.cost_programs import cluster
from support.programs import parse
from support.random_programs import arguments_of, assert_same_results, programs
from support.thoroughness import tries
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation

from distir.dialects.device import ClusterOp, MeshOp
from distir.dialects.dist import Layout
from distir.dialects.dist_attributes import SEPARATE_COPIES
from distir.interpreters.simulator import simulate
from distir.passes.partition import PartitionPass
from distir.passes.verify_distribution import VerifyDistributionPass
from distir.planning.costs.simulated import SimulatedCosts
from distir.planning.graph.annotate import annotate
from distir.planning.graph.strategies import Option, PassPartial
from distir.planning.layouts import builder as builder_module
from distir.planning.layouts.builder import GraphBuilder
from distir.planning.layouts.reshards import LayoutBody, chosen_plan
from distir.planning.layouts.search import search_sharding
from distir.program import reachable_functions
from distir.sharding.mesh import Mesh
from distir.solver import Problem, solve
from distir.solver.problem import Costs

MAX_STEPS = 5_000

UNCHECKED = [HealthCheck.too_slow, HealthCheck.filter_too_much]

Axes = tuple[tuple[str, int], ...]

MESHES = [(("d", 2),), (("t", 4),), (("d", 2), ("t", 2))]


def a_cluster(slow: bool) -> ClusterOp:
    """Work and communication cost about the same, or communication much more."""
    rate = 1e5 if slow else 1e9
    return cluster(4, levels=((4, rate, 1e-6),), peak=1e6, bandwidth=1e9, launch=1e-7)


def placed(
    program: ModuleOp, axes: Axes, slow: bool
) -> tuple[ModuleOp, Mesh, ClusterOp]:
    """A copy of a program with a cluster and a mesh."""
    module = program.clone()
    mesh = MeshOp("mesh", "c", axes, range(prod(n for _, n in axes)))
    first = module.body.block.first_op
    assert first is not None
    on = a_cluster(slow)
    module.body.block.insert_ops_before([on, mesh], first)
    return module, Mesh.of(mesh), on


def distributed(module: ModuleOp) -> ModuleOp:
    PartitionPass().apply(Context(), module)
    module.verify()
    VerifyDistributionPass().apply(Context(), module)
    return module


def built(
    module: ModuleOp, mesh: Mesh, on: ClusterOp
) -> tuple[GraphBuilder, LayoutBody]:
    """The graph, anew for every choice that is tried."""
    prices = SimulatedCosts(mesh, on)
    builder = GraphBuilder(reachable_functions(module), prices, {}, tie_layers=False)
    return builder, builder.build(len(mesh.axes))


def realised(
    program: ModuleOp,
    axes: Axes,
    slow: bool,
    choice: list[int],
    separate: bool = False,
) -> tuple[ModuleOp, float]:
    """
    The program that a choice leads to, with a copy of a value for each use if they are
    `separate`, and the seconds it takes.
    """
    module, mesh, on = placed(program, axes, slow)
    builder, body = built(module, mesh, on)
    nodes = zip(builder.graph.nodes, choice, strict=True)
    annotate(module, chosen_plan(body, {node: node.strategies[a] for node, a in nodes}))
    if separate:
        module.attributes[SEPARATE_COPIES] = UnitAttr()
    return distributed(module), simulate(module).step_time_s


class TooMany(Exception):
    """More combinations than a test should try."""


def best(problem: Problem) -> float:
    """The least cost of all combinations: nodes in their order, cut off by cost alone."""
    left = MAX_STEPS

    def extend(choice: list[int], so_far: float, bound: float) -> float:
        nonlocal left
        left -= 1
        if not left:
            raise TooMany
        i = len(choice)
        if i == len(problem.costs):
            return so_far
        for a, cost in enumerate(problem.costs[i]):
            more = so_far + float(cost)
            more += sum(
                float(problem.edges[j, i][choice[j], a])
                for j in range(i)
                if (j, i) in problem.edges
            )
            if more < bound:
                bound = min(bound, extend([*choice, a], more, bound))
        return bound

    return extend([], 0.0, inf)


def some_choice(problem: Problem, seed: int) -> list[int]:
    """A possible choice, by prices that mean nothing."""
    random = np.random.default_rng(seed)

    def any_price(costs: Costs) -> Costs:
        return np.where(np.isfinite(costs), random.integers(0, 100, costs.shape), inf)

    edges = {pair: any_price(matrix) for pair, matrix in problem.edges.items()}
    return list(solve(Problem([any_price(c) for c in problem.costs], edges)).choice)


@settings(max_examples=tries(10), suppress_health_check=UNCHECKED)
@given(
    programs(),
    st.sampled_from(MESHES),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_programs_cost_what_was_promised(
    program: ModuleOp, axes: Axes, slow: bool, joint: bool, seed: int
) -> None:
    """The best choice and any other: uses may share a copy, without that times are equal."""
    module, mesh, on = placed(program, axes, slow)
    builder, _ = built(module, mesh, on)
    problem = builder.graph.problem()
    choice = some_choice(problem, seed)
    other, actual = realised(program, axes, slow, choice)
    assert actual <= problem.cost(choice) * (1 + 1e-9)
    apart, separate = realised(program, axes, slow, choice, separate=True)
    assert separate == pytest.approx(problem.cost(choice))
    found = search_sharding(module, SimulatedCosts(mesh, on), joint=joint)
    best_time = simulate(distributed(module)).step_time_s
    assert best_time <= found.objective * (1 + 1e-9)
    if joint or len(axes) == 1:
        assert found.objective <= problem.cost(choice) * (1 + 1e-9)
    arguments = arguments_of(program)
    assert_same_results(program, module, arguments)
    assert_same_results(program, other, arguments)
    assert_same_results(program, apart, arguments)


def test_results_that_are_one_value_cost_what_was_promised() -> None:
    """
    Each result has a layout by itself: separate copies are not made from each other, which
    would be faster here than what the search counted.
    """
    shape = "tensor<4x4x4xf32>"
    program = parse(f"""
func.func @main(%x: {shape} {{dist.role = "input"}}) -> ({shape}, {shape}, {shape}) {{
  %y = onnx.Relu(%x) : ({shape}) -> {shape}
  func.return %y, %x, %x : {shape}, {shape}, {shape}
}}
""")
    axes = (("d", 2),)
    builder, body = built(*placed(program, axes, slow=False))
    problem = builder.graph.problem()
    apart: list[tuple[Layout, ...]] = []
    for seed in range(10):
        choice = some_choice(problem, seed)
        nodes = zip(builder.graph.nodes, choice, strict=True)
        chosen = {node: node.strategies[a].results for node, a in nodes}
        nodes_of = (body.arguments[0], body.sinks[1], body.sinks[2])
        apart.append(tuple(chosen[node][0] for node in nodes_of))
        _, seconds = realised(program, axes, False, choice, separate=True)
        assert seconds == pytest.approx(problem.cost(choice))
    assert any(len(set(layouts)) == 3 for layouts in apart)
    assert any(x != y == z for x, y, z in apart)


def optimum(program: ModuleOp, axes: Axes) -> tuple[float, int]:
    """The least cost, and how many alternatives there are."""
    builder, _ = built(*placed(program, axes, slow=True))
    problem = builder.graph.problem()
    return solve(problem).objective, sum(len(costs) for costs in problem.costs)


def all_options(
    functions: object, rules: object, options: Mapping[Operation, list[Option]]
) -> Mapping[Operation, list[Option]]:
    """In place of `without_impossible`."""
    return options


@settings(max_examples=tries(15), suppress_health_check=UNCHECKED)
@given(programs(), st.sampled_from(MESHES))
def test_alternatives_for_partial_values_that_there_are_not_are_no_loss(
    program: ModuleOp, axes: Axes
) -> None:
    fewer, left = optimum(program, axes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder_module, "without_impossible", all_options)
        every, there = optimum(program, axes)
    assert fewer == pytest.approx(every, rel=1e-9)
    assert left <= there


def test_partial_sums_pass_where_there_are_some() -> None:
    """A product that is split over what it sums up, and what is linear in it."""
    shape = "tensor<8x8xf32>"
    program = parse(f"""
func.func @main(%x: {shape} {{dist.role = "input"}}, %w: {shape} {{dist.role = "parameter"}}) -> {shape} {{
  %y = onnx.MatMul(%x, %w) : ({shape}, {shape}) -> {shape}
  %n = onnx.Neg(%y) : ({shape}) -> {shape}
  %m = onnx.Neg(%x) : ({shape}) -> {shape}
  func.return %n : {shape}
}}
""")
    builder, _ = built(*placed(program, (("d", 2),), slow=True))
    partial = {
        op.results[0].name_hint: [
            o.reduction for o in options if isinstance(o, PassPartial)
        ]
        for op, (options,) in builder.axis_options.items()
    }
    assert partial == {"y": [], "n": ["sum"], "m": []}


def assert_best(program: ModuleOp, axes: Axes, slow: bool) -> None:
    module, mesh, on = placed(program, axes, slow)
    builder, _ = built(module, mesh, on)
    try:
        expected = best(builder.graph.problem())
    except TooMany:
        reject()
    found = search_sharding(module, SimulatedCosts(mesh, on), joint=True)
    assert found.objective == pytest.approx(expected)
    assert found.bound == pytest.approx(expected)


@settings(max_examples=tries(10), suppress_health_check=UNCHECKED)
@given(programs(max_ops=3), st.sampled_from(MESHES), st.booleans())
def test_the_best_of_all_combinations(
    program: ModuleOp, axes: Axes, slow: bool
) -> None:
    assert_best(program, axes, slow)


@pytest.mark.slow
@settings(max_examples=tries(300), suppress_health_check=UNCHECKED)
@given(programs(max_ops=3), st.sampled_from(MESHES), st.booleans())
def test_the_best_of_all_combinations_many_times(
    program: ModuleOp, axes: Axes, slow: bool
) -> None:
    assert_best(program, axes, slow)
