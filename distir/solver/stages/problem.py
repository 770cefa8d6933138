"""The problem of dividing a graph into stages, and a division."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from distir.errors import DistIRError
from distir.solver.problem import relative_gap

Floats = npt.NDArray[np.float64]

TOLERANCE = 1e-9
"""By which fraction rounding may exceed a limit."""


@dataclass(frozen=True)
class SharedTensor:
    """
    A tensor that a node gives to others: `cost` is the cost of bringing it from the
    stage of its producer to another one. It is brought to each stage once, however many
    consumers are there.
    """

    producer: int
    consumers: tuple[int, ...]
    cost: float


@dataclass(frozen=True)
class StageMemory:
    """
    A limit on what the nodes of a stage occupy.

    - `fixed[i]`: bytes of node i whatever runs (parameters, gradients, optimizer state);
    - `kept[i]`: bytes that it keeps of each micro-batch from its forward to its backward;
    - `in_flight[s]`: the number of micro-batches that stage s keeps at a time;
    - `limit`: bytes.
    """

    fixed: Sequence[float]
    kept: Sequence[float]
    in_flight: Sequence[int]
    limit: float


@dataclass(frozen=True)
class StageProblem:
    """
    The problem of assigning each node of a graph without cycles to one of `stages` stages
    0, 1, ..., such that none of a node's predecessors is on a later one and no stage is
    empty.

    - `loads[i]`: seconds of node i. Backward work belongs to the node of its
      forward: stages are mirrored, so that a backward op is with its forward whatever
      is chosen. (Rhino orders forward and backward alike, which does not keep them
      together.)
    - `edges`: pairs (i, j), i < j, of nodes where j needs something of i: the nodes are
      numbered in an order in which they can run.
    - `tensors`: the costs of bringing values to other stages, and gradients too, whose
      producers come after their consumers.
    - `layers`: each stage must have at least one of these nodes; by default all nodes.
    - `memory`: a limit for each stage, or None.

    Raises DistIRError for more stages than layers.
    """

    loads: Sequence[float]
    edges: Sequence[tuple[int, int]]
    tensors: Sequence[SharedTensor]
    stages: int
    layers: Sequence[int] | None = None
    memory: StageMemory | None = None

    def __post_init__(self) -> None:
        if any(i >= j for i, j in self.edges):
            raise ValueError("an edge must lead to a node with a larger number")
        if self.stages < 1 or len(self.layer_nodes) < self.stages:
            raise DistIRError(
                f"stages: {self.stages} were asked for, but there are "
                f"{len(self.layer_nodes)} layers to deal out; choose fewer stages"
            )

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.loads)

    @cached_property
    def layer_nodes(self) -> Sequence[int]:
        """The nodes of which each stage must have one."""
        return range(self.nodes) if self.layers is None else sorted(set(self.layers))

    @cached_property
    def has_one_order(self) -> bool:
        """
        Whether every division follows the order of the nodes' numbers. If layers follow
        each other, what leads to the first one is on the first stage in any case, and what
        depends on the last one on the last stage, in whatever order they run; all others
        must follow each other.
        """
        after = self._descendants
        layers = self.layer_nodes
        if not all(after[i] >> j & 1 for i, j in pairwise(layers)):
            return False
        first, last = layers[0], layers[-1]
        head = {i for i in range(first) if after[i] >> first & 1}
        tail = {j for j in range(last + 1, self.nodes) if after[last] >> j & 1}
        others = [i for i in range(self.nodes) if i not in head and i not in tail]
        return (
            max(head, default=-1) < others[0]
            and others[-1] < min(tail, default=self.nodes)
            and all(after[i] >> j & 1 for i, j in pairwise(others))
        )

    @cached_property
    def _descendants(self) -> Sequence[int]:
        """Returns the nodes that depend on each node, as bits."""
        found = [0] * self.nodes
        for i, j in sorted(self.edges, reverse=True):
            found[i] |= 1 << j | found[j]
        return found

    def stage_loads(self, stages: Sequence[int]) -> Floats:
        """Returns the seconds of each stage."""
        return _by_stage(self.loads, stages, self.stages)

    def bottleneck(self, stages: Sequence[int]) -> float:
        """Returns the seconds of the busiest stage."""
        return float(self.stage_loads(stages).max())

    def communication(self, stages: Sequence[int]) -> float:
        """
        Returns the cost of all tensors, each once for every stage that it is brought to.
        """
        return sum(
            t.cost * len({stages[c] for c in t.consumers} - {stages[t.producer]})
            for t in self.tensors
        )

    def stage_memory(self, stages: Sequence[int]) -> Floats:
        """Returns the bytes on each stage; zeros without a limit of memory."""
        memory = self.memory
        if memory is None:
            return np.zeros(self.stages)
        fixed = _by_stage(memory.fixed, stages, self.stages)
        kept = _by_stage(memory.kept, stages, self.stages)
        return fixed + kept * np.array(memory.in_flight, np.float64)

    def allows(self, stages: Sequence[int], cap: float = np.inf) -> bool:
        """
        Whether a division keeps the order, leaves no stage without a layer, and keeps to
        the memory limit and to `cap` seconds for each stage.
        """
        if len(stages) != self.nodes or not set(stages) <= set(range(self.stages)):
            return False
        limit = np.inf if self.memory is None else self.memory.limit
        return (
            all(stages[i] <= stages[j] for i, j in self.edges)
            and len({stages[i] for i in self.layer_nodes}) == self.stages
            and self.bottleneck(stages) <= cap * (1 + TOLERANCE)
            and float(self.stage_memory(stages).max()) <= limit * (1 + TOLERANCE)
        )


@dataclass(frozen=True)
class StageDivision:
    """
    The best division found, and how good it is at least.

    - `stages`: the stage of each node; `communication`, `bottleneck`: those of the
      division;
    - `objective`: the one of the two that was minimised; `bound`: no allowed division has a
      smaller one;
    - `method`: the method that found it; `seconds`: how long that took.
    """

    stages: Sequence[int]
    communication: float
    bottleneck: float
    objective: float
    bound: float
    method: str
    seconds: float

    @property
    def gap(self) -> float:
        """
        The distance of the objective from the bound, as a fraction of the objective; 0
        is a proof.
        """
        return relative_gap(self.objective, self.bound)


def _by_stage(values: Sequence[float], stages: Sequence[int], count: int) -> Floats:
    """Returns the sum of the nodes' values on each stage."""
    sums = np.zeros(count)
    np.add.at(sums, list(stages), np.asarray(values, np.float64))
    return sums
