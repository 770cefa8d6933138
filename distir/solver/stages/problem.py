"""The problem of dividing a graph into stages, and its solution."""

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
"""The fraction by which a limit may be exceeded through rounding."""


@dataclass(frozen=True)
class SharedTensor:
    """
    A tensor that the node `producer` provides to the nodes `consumers`. `cost` is the
    cost of sending the tensor from its producer's stage to one other stage. Each stage
    receives the tensor only once, however many consumers the stage has.
    """

    producer: int
    consumers: tuple[int, ...]
    cost: float


@dataclass(frozen=True)
class StageMemory:
    """
    A memory limit for the nodes of each stage.

    - `fixed[i]`: the bytes that node i always occupies (parameters, gradients,
      optimizer states);
    - `kept[i]`: the bytes of each micro-batch that node i keeps from its forward pass
      to its backward pass;
    - `in_flight[s]`: the number of micro-batches that stage s keeps at a time;
    - `limit`: the bytes that each stage may occupy.
    """

    fixed: Sequence[float]
    kept: Sequence[float]
    in_flight: Sequence[int]
    limit: float


@dataclass(frozen=True)
class StageProblem:
    """
    The problem of assigning each node of an acyclic graph to one of the stages 0, 1,
    ..., `stages` - 1. No predecessor of a node may be on a later stage, and no stage
    may be empty.

    - `loads[i]`: the seconds of work of node i. A node includes the work of its
      backward pass, so that every division keeps an op and its backward op on one
      stage. (Rhino orders both passes alike, which does not keep them together.)
    - `edges`: pairs (i, j), i < j, of nodes such that j needs a result of i. The
      numbers of the nodes are thus an order in which they can run.
    - `tensors`: the costs of sending values to other stages. Gradients are included;
      their producers come after their consumers.
    - `layers`: each stage must have at least one of these nodes; by default all nodes.
    - `memory`: a memory limit for each stage, or None.

    Raises DistIRError if there are more stages than layers.
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
        """
        The nodes that are layers, in order. Each stage must have at least one of them.
        """
        return range(self.nodes) if self.layers is None else sorted(set(self.layers))

    @cached_property
    def has_one_order(self) -> bool:
        """
        Whether every division keeps the order of the nodes' indices.

        If the layers follow each other, the nodes that lead to the first layer are
        always on the first stage, and the nodes that depend on the last layer are
        always on the last stage. Their order does not matter. All other nodes must form
        one chain.
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
        """
        The nodes that depend on each node, directly or not, as bits of an integer.
        """
        found = [0] * self.nodes
        for i, j in sorted(self.edges, reverse=True):
            found[i] |= 1 << j | found[j]
        return found

    def stage_loads(self, stages: Sequence[int]) -> Floats:
        """
        Returns the seconds of work of each stage. `stages` gives the stage of each
        node.
        """
        return _by_stage(self.loads, stages, self.stages)

    def bottleneck(self, stages: Sequence[int]) -> float:
        """
        Returns the seconds of work of the busiest stage. `stages` gives the stage of
        each node.
        """
        return float(self.stage_loads(stages).max())

    def communication(self, stages: Sequence[int]) -> float:
        """
        Returns the communication cost of a division: each tensor is charged once for
        every stage that receives it. `stages` gives the stage of each node.
        """
        return sum(
            t.cost * len({stages[c] for c in t.consumers} - {stages[t.producer]})
            for t in self.tensors
        )

    def stage_memory(self, stages: Sequence[int]) -> Floats:
        """
        Returns the bytes that each stage occupies, or zeros if the problem has no
        memory limit. `stages` gives the stage of each node.
        """
        memory = self.memory
        if memory is None:
            return np.zeros(self.stages)
        fixed = _by_stage(memory.fixed, stages, self.stages)
        kept = _by_stage(memory.kept, stages, self.stages)
        return fixed + kept * np.array(memory.in_flight, np.float64)

    def allows(self, stages: Sequence[int], cap: float = np.inf) -> bool:
        """
        Whether a division is valid: it keeps the order of the edges, every stage has a
        layer and fits into memory, and no stage has more than `cap` seconds of work.
        `stages` gives the stage of each node.
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
    The best division found, with a lower bound for all divisions.

    - `stages`: the stage of each node; `communication`: the communication cost of the
      division; `bottleneck`: the seconds of work of the busiest stage;
    - `objective`: the value that was minimised, either `communication` or `bottleneck`;
      `bound`: every allowed division has at least this objective;
    - `method`: the method that found the division; `seconds`: the time that the search
      took.
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
        The distance of the objective from the bound, as a fraction of the objective. If
        it is 0, the division is proven optimal.
        """
        return relative_gap(self.objective, self.bound)


def _by_stage(values: Sequence[float], stages: Sequence[int], count: int) -> Floats:
    """
    Returns the sum of `values` over the nodes of each stage. `stages` gives the stage
    of each node.
    """
    sums = np.zeros(count)
    np.add.at(sums, list(stages), np.asarray(values, np.float64))
    return sums
