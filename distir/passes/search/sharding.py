"""The search for the layouts of a whole program: build, solve, annotate."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.dialects.dist import Layout
from distir.passes.annotations import requested_layout
from distir.passes.search.sharding_choice import annotate
from distir.passes.search.simulated_prices import SimulatedPrices
from distir.passes.sharding_plan import ShardingPlan
from distir.program import argument_attributes, entry_function, reachable_functions
from distir.sharding.mesh import Mesh
from distir.sharding.search import Before, GraphBuilder, work_size
from distir.solver import solve

MAX_OPS = 2000
"""Ops, counted once per call: a larger program shares choices between its calls."""

MAX_ALTERNATIVES = 6000
"""Alternatives of all choices together: above that, axes are chosen one by one."""


@dataclass(frozen=True)
class Limits:
    """
    What a search may use.

    - `memory`: bytes per device; None for as many as there are;
    - `solver`: `highs`, `cbc`, or `auto` for whichever method suits the problem;
    - `gap`: how much dearer than the best the answer may be, as a fraction;
    - `seconds`: of solving; None for as long as it takes.
    """

    memory: float | None = None
    solver: str = "auto"
    gap: float = 0.0
    seconds: float | None = None


@dataclass(frozen=True)
class Found:
    """
    What a search found.

    - `objective`: seconds of all ops and communication, as the simulator counts them;
      `bound`: no choice that was weighed takes less; `gap`: their distance, as a fraction;
    - `choices`, `alternatives`, `edges`: the size of the largest problem solved;
    - `shared`: whether repeated calls shared their choices; the bound is then one for plans
      that share alike;
    - `stages`: how many groups of mesh axes were chosen one after the other; with more than
      one the bound is one for the last group;
    - `method`, `build_seconds`, `solve_seconds`: how, and how long it took.
    """

    objective: float
    bound: float
    gap: float
    choices: int
    alternatives: int
    edges: int
    shared: bool
    stages: int
    method: str
    build_seconds: float
    solve_seconds: float

    def __str__(self) -> str:
        shared = ", repeated calls share their choices" if self.shared else ""
        stages = f", axes in {self.stages} stages" if self.stages > 1 else ""
        return (
            f"{self.objective:.6g} s of work and communication, at most "
            f"{100 * self.gap:.3g} % above the best ({self.choices} choices with "
            f"{self.alternatives} alternatives and {self.edges} edges{shared}{stages})"
        )


def search_sharding(
    module: ModuleOp,
    mesh: Mesh,
    cluster: ClusterOp,
    limits: Limits | None = None,
    *,
    share: bool | None = None,
    joint: bool | None = None,
) -> Found:
    """
    Annotates a sequential program with the layouts that take the least time on a mesh of a
    cluster, for `partition`.

    `share`: whether repeated calls share their choices; by default those of programs with
    more than `MAX_OPS` ops do. `joint`: whether the mesh's axes are chosen together; by
    default if there are not more than `MAX_ALTERNATIVES`. Otherwise one is chosen after
    the other, outermost first. Raises DistIRError.
    """
    limits = limits or Limits()
    start = perf_counter()
    ShardingPlan(module, mesh)  # refuses requests that no layout can meet
    reachable = reachable_functions(module)
    if share is None:
        share = work_size(reachable) > MAX_OPS
    prices = SimulatedPrices(mesh, cluster)
    builder = GraphBuilder(reachable, mesh, prices, _requests(module), share=share)
    axes = len(mesh.axes)
    if joint is None:
        joint = builder.alternatives_of_all() <= MAX_ALTERNATIVES
    stages = [axes] if joint or axes < 2 else list(range(1, axes + 1))
    building = solving = 0.0
    before: Before | None = None
    for count in stages:
        body = builder.build(count, before)
        problem = builder.graph.problem()
        now = perf_counter()
        building += now - start
        solution = solve(problem)
        start = perf_counter()
        solving += start - now
        chosen = {
            node: node.strategies[a]
            for node, a in zip(builder.graph.nodes, solution.choice, strict=True)
        }
        before = Before(body, chosen)
    assert before is not None
    annotate(module, before.body, before.chosen)
    return Found(
        solution.objective,
        solution.bound,
        solution.gap,
        len(problem.costs),
        sum(len(c) for c in problem.costs),
        len(problem.edges),
        share,
        len(stages),
        solution.method,
        building + perf_counter() - start,
        solving,
    )


def _requests(module: ModuleOp) -> dict[int, Layout]:
    """The layouts that arguments of the entry must have."""
    attributes = argument_attributes(entry_function(module))
    return {
        i: layout
        for i, entry in enumerate(attributes)
        if (layout := requested_layout(entry)) is not None
    }
