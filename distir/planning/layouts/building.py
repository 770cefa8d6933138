"""The state of a layout graph while it is being built."""

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
    """The decisions that were made earlier, for the first `axes` mesh axes."""

    plan: FunctionPlan[Layout]
    axes: int


@dataclass
class Building:
    """
    The state of a layout graph while it is being built.

    - `cost_model`: prices ops, reshards and sends;
    - `requests`: the requests for the layouts of the entry function's arguments, by
      index;
    - `graph`: the graph;
    - `axes`: the number of mesh axes, from the first one on, whose layouts the nodes
      choose;
    - `before`: the earlier decisions, which stay; None if there are none;
    - `stages`: the pipeline stages of the ops, if the graph includes the costs of sends
      between them;
    - `node_times`: the number of times that a node of the entry function runs per step:
      once, or once per micro-batch.
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
        """Returns the axes that were chosen earlier."""
        count = self.before.axes if self.before else 0
        return {axis for axis, _ in self.mesh.axes[:count]}

    def still(self, layouts: Iterable[Layout], before: Layout) -> list[Layout]:
        """
        Returns the `layouts` that agree with `before` on the axes chosen earlier. If
        none agrees, returns a list with `before` alone.
        """
        fixed = self.axes_before()
        return [x for x in layouts if restricted(x, fixed) == before] or [before]

    def times(self, layouts: Iterable[Layout]) -> int:
        """
        Returns the number of times per step that an op on values in `layouts` runs.
        This is the number of micro-batches if a value is split over micro-batches or is
        a term of a sum over them, and otherwise 1.
        """
        if any(TIME_AXIS in (*x.split_axes, *x.partial_axes) for x in layouts):
            return self.mesh.size(TIME_AXIS)
        return 1

    def times_of_use(self, use: Use) -> int:
        """
        Returns the number of times per step that a use in the entry function happens.
        """
        return self.node_times.get(use.node, 1)

    def is_sum(self, port: LayoutPort) -> bool:
        """
        Whether a value of the entry function is accumulated over several micro-batches.
        """
        first = next(iter(layouts_of(port)), None)
        partial = first is not None and TIME_AXIS in first.partial_axes
        return partial and self.mesh.size(TIME_AXIS) > 1
