"""Builds the graph of layouts of a program, and stores choices in it as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, UnitAttr

from distir.dialects.dist import FIXED, SEPARATE_COPIES
from distir.planning.annotate import annotate
from distir.planning.annotations import fixed_axes, requested_layout
from distir.planning.axes.sharding_plan import ShardingPlan, propagate_sharding
from distir.planning.batches import split_batch
from distir.planning.costs import CostModel
from distir.planning.layouts.argument_requests import ArgumentRequest
from distir.planning.layouts.builder import GraphBuilder, work_size
from distir.planning.layouts.building import Before
from distir.planning.layouts.reshards import (
    chosen_plan,
)
from distir.planning.layouts.sends import StagesOfOps
from distir.planning.layouts.split_over_time import split_over_time
from distir.planning.unit_costs import UnitCosts
from distir.program import argument_attributes, entry_function, reachable_functions
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.solver.clock import Clock

MAX_OPS = 2000
"""
Programs with more ops than this, counted once per call, share choices between repeated
calls.
"""


@dataclass(frozen=True)
class ChosenLayouts:
    """
    The layouts that a search chose, without the program.

    `tied` says whether repeated calls shared their choices, `limited` whether the fastest
    layouts need more memory than was allowed, `separate` whether each use of a value
    brings it to its layout for itself, as no copy may be kept for later ones. Each of `steps` says how many of the mesh's
    first axes it chose, and the alternative of each node in the order of the graph. Without
    steps nothing was searched: arguments are split as was asked for, inputs and labels that
    hold the batch over the axes of `batch` too, and the rest follows.

    Where sends between the stages of one pipeline counted, `without_sends` are the layouts
    for any pipeline, which were found before.
    """

    tied: bool = False
    limited: bool = False
    steps: tuple[tuple[int, tuple[int, ...]], ...] = ()
    separate: bool = False
    batch: tuple[str, ...] = ()
    without_sends: ChosenLayouts | None = None

    @property
    def for_any_pipeline(self) -> ChosenLayouts:
        """The layouts that were chosen while sends between stages did not count."""
        return self.without_sends or self


@dataclass(frozen=True)
class LayoutGraph:
    """
    Builds the graphs of a program; `first` is what the micro-batch axis does, if there is
    one.
    """

    builder: GraphBuilder
    first: Before | None

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
        mesh, requests, first = costs.mesh, _requests(module), None
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
        return LayoutGraph(builder, first)


def apply_layouts(module: ModuleOp, mesh: Mesh, layouts: ChosenLayouts) -> None:
    """
    Annotates a sequential program with layouts that were chosen for it before; nothing is
    solved. Raises DistIRError.
    """
    if layouts.separate:
        module.attributes[SEPARATE_COPIES] = UnitAttr()
    if not layouts.steps:
        if mesh.has_time:
            split_over_time(module, mesh, _requests(module))
        for axis in layouts.batch:
            split_batch(module, axis)
        propagate_sharding(module, mesh)
        return
    graph = LayoutGraph.of(module, UnitCosts(mesh), layouts.tied)
    before = graph.first
    for axes, choice in layouts.steps:
        body = graph.builder.build(axes, before)
        before = Before(chosen_plan(body, graph.builder.graph.chosen(choice)), axes)
    assert before is not None
    annotate(module, before.plan)


def _requests(module: ModuleOp) -> dict[int, ArgumentRequest]:
    """Returns what is asked for arguments of the entry, by index."""
    attributes = argument_attributes(entry_function(module))
    return {
        i: ArgumentRequest(layout, fixed_axes(entry) if FIXED in entry else None)
        for i, entry in enumerate(attributes)
        if (layout := requested_layout(entry)) is not None
    }
