"""The state of a graph of layouts while it is being built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from distir.dialects.dist import Layout
from distir.planning.costs.cost_model import CostModel
from distir.planning.graph.function_plan import FunctionPlan
from distir.planning.layouts.argument_requests import ArgumentRequest, restricted
from distir.planning.layouts.reshards import (
    LayoutNode,
    LayoutPort,
    ReshardGraph,
    Use,
    layouts_of,
)
from distir.planning.layouts.sends import StagesOfOps
from distir.sharding.mesh import TIME_AXIS


@dataclass(frozen=True)
class Before:
    """The decisions for the first `axes` of the mesh's axes."""

    plan: FunctionPlan[Layout]
    axes: int


@dataclass
class Building:
    """
    The state of a graph of layouts while it is being built.

    - `graph`: the graph, whose nodes choose what the mesh's first `axes` axes do;
    - `requests`: the requests for arguments of the entry, by index;
    - `before`: the earlier decisions that stay, if there are any;
    - `stages`: the stages of the pipeline that the program is to become, if sends between
      them count;
    - `node_times`: for nodes of the entry how often they run: once, or once per
      micro-batch.
    """

    cost_model: CostModel
    requests: Mapping[int, ArgumentRequest]
    graph: ReshardGraph
    axes: int = 0
    before: Before | None = None
    stages: StagesOfOps | None = None
    node_times: dict[LayoutNode, int] = field(default_factory=dict[LayoutNode, int])

    def __post_init__(self) -> None:
        self.mesh = self.cost_model.mesh

    def axes_before(self) -> set[str]:
        """Returns the axes whose choices were made earlier."""
        count = self.before.axes if self.before else 0
        return {axis for axis, _ in self.mesh.axes[:count]}

    def still(self, layouts: Iterable[Layout], before: Layout) -> list[Layout]:
        """
        Returns the layouts that agree with `before` on the axes chosen already; `before`
        itself if there are none.
        """
        fixed = self.axes_before()
        return [x for x in layouts if restricted(x, fixed) == before] or [before]

    def times(self, layouts: Iterable[Layout]) -> int:
        """
        Returns how often something in the entry function runs that works on values in these
        layouts: once per micro-batch if a value is split over micro-batches, or a term of a
        sum over them.
        """
        if any(TIME_AXIS in (*x.split_axes, *x.partial_axes) for x in layouts):
            return self.mesh.size(TIME_AXIS)
        return 1

    def times_of_use(self, use: Use) -> int:
        """Returns how often a use of a value in the entry function happens in a step."""
        return self.node_times.get(use.node, 1)

    def is_sum(self, port: LayoutPort) -> bool:
        """
        Whether a value of the entry function is accumulated over several micro-batches.
        """
        first = next(iter(layouts_of(port)), None)
        partial = first is not None and TIME_AXIS in first.partial_axes
        return partial and self.mesh.size(TIME_AXIS) > 1
