"""Builds the graph of layouts of a program."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from distir.planning.axes.sharding_plan import ShardingPlan
from distir.planning.costs.cost_model import CostModel
from distir.planning.graph.written_plan import WrittenPlan
from distir.planning.layouts.argument_requests import requests_of
from distir.planning.layouts.builder import GraphBuilder, work_size
from distir.planning.layouts.building import Before
from distir.planning.layouts.sends import StagesOfOps
from distir.planning.layouts.split_over_time import split_over_time
from distir.program import reachable_functions
from distir.sharding.mesh import TIME_AXIS
from distir.solver.clock import Clock

MAX_OPS = 2000
"""
Programs with more ops than this, counted once per call, share choices between repeated
calls.
"""


@dataclass(frozen=True)
class LayoutGraph:
    """
    Builds the graphs of a program; `first` is what the micro-batch axis does, if there is
    one, and `steps` are the plans for which the program was changed (`ChosenLayouts`).
    """

    builder: GraphBuilder
    first: Before | None
    steps: tuple[WrittenPlan, ...]

    @staticmethod
    def of(
        module: ModuleOp,
        costs: CostModel,
        tie_layers: bool | None = None,
        clock: Clock | None = None,
        stages: StagesOfOps | None = None,
    ) -> LayoutGraph:
        """
        Returns the builder for a sequential program, which may be annotated, on the mesh of
        the costs; sends between `stages` count, if they are given. Raises DistIRError, and TimeIsOver when the clock stops while it builds.
        """
        mesh, requests, first = costs.mesh, requests_of(module), None
        if mesh.has_time:
            requests = split_over_time(module, mesh, requests)
        plan = ShardingPlan(module, mesh)  # refuses requests that no layout can meet
        if mesh.has_time:
            plan.add_axis(TIME_AXIS)
            first = Before(plan.plan, 1)
        reachable = reachable_functions(module)
        if tie_layers is None:
            tie_layers = work_size(reachable) > MAX_OPS
        builder = GraphBuilder(
            reachable,
            costs,
            requests,
            tie_layers=tie_layers,
            clock=clock,
            stages=stages,
        )
        return LayoutGraph(builder, first, tuple(plan.steps))
