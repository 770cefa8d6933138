"""
Levels O2 and O3 of `search-sharding`: `python bench/levels.py` prints the table of docs/internals/searched-levels.md.

Steps of GPT (width 1,024) and of a MoE transformer's expert layers on devices of `dgx2`. Seconds
are CPU time of solving, reductions included, the least of two runs; building the graph takes the same
for both. `python bench/levels.py limited` does the same under limits of memory that bind, from the
program to layouts that fit as the simulator sees it; `python bench/levels.py joint` chooses three axes
together.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

from report import table
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.passes.differentiate import DifferentiatePass
from distir.planning.costs.micro_batches import costs_on
from distir.planning.distribution.meshes import add_mesh
from distir.planning.layouts.builder import (
    LayoutGraph,
    work_size,
)
from distir.planning.layouts.fitted import FittedSearch
from distir.planning.layouts.fitted_plan import FittedPlan
from distir.planning.layouts.flow import flow_of
from distir.planning.layouts.search import LEVELS, Limits, search_sharding
from distir.planning.plans.programs import replace_cluster
from distir.program import reachable_functions
from distir.solver import Problem, Solution, solve
from distir.solver.flow import Segments
from distir.solver.solve import Level

sys.path.insert(0, str(Path(__file__).parent.parent / "test"))
from support.moe_programs import moe_step

Axes = tuple[tuple[str, int], ...]


def training_step(*sizes: int) -> ModuleOp:
    """
    Returns an AdamW training step of a GPT; sizes are layers, width, heads, vocabulary,
    batch and sequence.
    """
    module = build_gpt(*sizes)
    DifferentiatePass(optimizer="adamw").apply(Context(), module)
    return module


def gpt_step(layers: int, batch: int, sequence: int) -> ModuleOp:
    """Returns a training step of a GPT of width 1,024."""
    return training_step(layers, 1024, 16, 51200, batch, sequence)


def experts_step(layers: int) -> ModuleOp:
    """Returns a step of 16 groups of 1,024 tokens with 8 experts."""
    return moe_step(layers, groups=16, tokens=1024, width=1024, experts=8, slots=128)


ONE_AXIS: Axes = (("d", 8),)
TWO_AXES: Axes = (("d", 2), ("t", 4))

PROGRAMS: dict[str, tuple[Callable[[], ModuleOp], Axes]] = {
    "GPT, 24 layers, batch 32": (lambda: gpt_step(24, 32, 512), ONE_AXIS),
    "GPT, 24 layers, batch 8": (lambda: gpt_step(24, 8, 128), ONE_AXIS),
    "GPT, 72 layers, batch 32": (lambda: gpt_step(72, 32, 512), ONE_AXIS),
    "GPT, 4 layers, batch 8, two axes": (lambda: gpt_step(4, 8, 128), TWO_AXES),
    "experts, 24 layers": (lambda: experts_step(24), ONE_AXIS),
    "experts, 4 layers, two axes": (lambda: experts_step(4), TWO_AXES),
}


def graph_of(program: ModuleOp, axes: Axes) -> tuple[Problem, Segments]:
    """Returns the choices of a program without sharing, in nanoseconds."""
    cluster = load_cluster("dgx2")
    first = program.body.block.first_op
    assert first is not None
    program.body.block.insert_op_before(cluster, first)
    mesh = add_mesh(program, axes, cluster)
    builder = LayoutGraph.of(program, costs_on(mesh, cluster), tie_layers=False).builder
    body = builder.build(len(axes))
    problem = builder.graph.problem()
    costs = [c * 1e9 for c in problem.costs]
    edges = {pair: matrix * 1e9 for pair, matrix in problem.edges.items()}
    return Problem(costs, edges), flow_of(builder, body).segments()


def timed(action: Callable[[], Solution]) -> tuple[Solution, float]:
    """Returns the result, and the least CPU seconds of two runs."""
    seconds: list[float] = []
    for _ in range(2):
        gc.collect()
        start = time.process_time()
        solution = action()
        seconds.append(time.process_time() - start)
    return solution, min(seconds)


def row(name: str) -> list[str]:
    """Returns the table's row of a program, solved at both levels."""
    make, axes = PROGRAMS[name]
    program = make()
    ops = work_size(reachable_functions(program))
    problem, segments = graph_of(program, axes)
    fast, fast_seconds = timed(lambda: solve(problem, segments=segments))
    whole, whole_seconds = timed(lambda: solve(problem))
    loss = fast.objective / whole.objective - 1
    return [
        name,
        f"{ops:,}",
        f"{len(segments.critical)}",
        f"{len(segments.critical) / ops:.1%}",
        f"{len(segments.groups)}",
        f"{100 * max(loss, 0.0):.2f} %",
        f"{fast_seconds:.2f}",
        f"{whole_seconds:.2f}",
    ]


LIMITED: dict[str, tuple[tuple[int, ...], float]] = {
    "GPT, 2 layers, width 64, batch 8": ((2, 64, 4, 128, 8, 16), 1 / 3),
    "GPT, 2 layers, width 256, batch 8": ((2, 256, 4, 512, 8, 64), 0.8),
}
"""
The sizes of training steps over 2 x 2 devices, and the fraction of the memory of the
fastest layouts that each is limited to.
"""


def searched(name: str, level: Level, memory: float | None) -> tuple[FittedPlan, float]:
    """Returns the layouts found, and the CPU seconds from the program to them."""
    module = training_step(*LIMITED[name][0])
    cluster = load_cluster("dgx2")
    replace_cluster(module, cluster)
    mesh = add_mesh(module, (("d", 2), ("t", 2)), cluster)
    gc.collect()
    start = time.process_time()
    limits = Limits(memory=memory, level=level)
    plan = FittedSearch(mesh, cluster, None, limits).run(module)
    return plan, time.process_time() - start


def limited_row(name: str) -> list[str]:
    """
    Returns the row of a program that is searched at both levels, in a fraction of the
    memory of its fastest layouts.
    """
    free, _ = searched(name, "O2", None)
    limit = round(LIMITED[name][1] * free.needed, -3)
    cells = [name, f"{free.needed:,}", f"{limit:,.0f}"]
    for level in LEVELS:
        plan, seconds = searched(name, level, limit)
        assert plan.fits and plan.found is not None
        costs, gap = plan.found.objective, plan.found.gap
        cells += [f"{1e6 * costs:.1f}", f"{seconds:.1f}"]
    return [*cells, f"{100 * gap:.2f} %"]


def mlp_step(layers: int) -> ModuleOp:
    """A step with AdamW of an MLP of width 1,024."""
    module = build_mlp(layers, 1024, 256)
    DifferentiatePass(loss="mse", optimizer="adamw").apply(Context(), module)
    return module


JOINT: dict[str, Callable[[], ModuleOp]] = {
    "MLP, 2 layers, a step": lambda: mlp_step(2),
    "GPT, 1 layer, forward": lambda: build_gpt(1, 256, 4, 512, 8, 64),
}


def joint_row(name: str) -> list[str]:
    """The layouts of a program over 2 x 2 x 2 devices, all axes together."""
    module, cluster = JOINT[name](), load_cluster("dgx2")
    replace_cluster(module, cluster)
    ops = work_size(reachable_functions(module))
    mesh = add_mesh(module, (("d", 2), ("t", 2), ("s", 2)), cluster)
    start = time.process_time()
    found = search_sharding(module, costs_on(mesh, cluster), joint=True)
    seconds = time.process_time() - start
    sizes = [str(ops), f"{found.alternatives:,}", f"{100 * found.gap:.3g} %"]
    return [name, *sizes, f"{seconds:.1f}"]


if __name__ == "__main__" and "joint" in sys.argv:
    head = ["program", "ops", "alternatives", "gap", "CPU s"]
    print(table(head, [joint_row(name) for name in JOINT]))
elif __name__ == "__main__" and "limited" in sys.argv:
    head = ["step", "bytes without a limit", "limit", "O2, us", "O2, s", "O3, us", "O3, s", "gap at O3"]  # fmt: skip
    print(table(head, [limited_row(name) for name in LIMITED]))
elif __name__ == "__main__":
    head = ["step", "ops", "critical nodes", "of the ops", "segments", "O2 costs more by", "O2, s", "O3, s"]  # fmt: skip
    print(table(head, [row(name) for name in PROGRAMS]))
