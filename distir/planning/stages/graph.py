"""
The graph of a program that is divided into stages, with the simulator's seconds and
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import Layout, layout_of
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.pipelining import Action, Phase, PipelineSchedule, simulate_schedule
from distir.pipelining.simulation import in_flight_per_stage
from distir.planning.costs.rank_links import RankLink
from distir.planning.stages.costs import OpCosts
from distir.program import arguments_of
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import SplitPlacement
from distir.sharding.prices import local_bytes
from distir.solver.stages import SharedTensor, StageMemory, StageProblem
from distir.transforms.pipelines.assigned_stages import AssignedStages, stages_reached
from distir.transforms.pipelines.balance import Floats, layer_positions
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.over_time import over_time
from distir.transforms.pipelines.stages import StagePlacer
from distir.transforms.pipelines.structure import Structure

Stages = Mapping[Operation, int]

PHASES = ("forward", "backward", "once")


@dataclass(frozen=True)
class StageGraph:
    """
    A program as a problem for the solver that divides it into stages. The nodes are its
    forward ops in program order; a call of a layer is one node.

    An op that is not a node belongs to the node with which `pipeline` would run it if
    every node were a stage: a backward op to its forward op, an update to the first use
    of its parameter. Values, gradients and parameters that several nodes need are
    shared tensors. The cost of a shared tensor is the seconds of a send between
    neighbouring ranks.
    """

    ops: Sequence[Operation]
    problem: StageProblem
    schedule: PipelineSchedule
    work: Mapping[str, Sequence[float]]
    """
    The seconds of each node in a step, by phase: `forward`, `backward`, or `once` for
    ops that run once per step.
    """

    @staticmethod
    def of(
        structure: Structure,
        schedule: PipelineSchedule,
        costs: OpCosts,
        mesh: Mesh | None = None,
    ) -> StageGraph:
        """
        Builds the graph of a program for the stages of `schedule`. `mesh` is the mesh
        of a stage, with the same axes as the program's mesh; by default it is the
        program's mesh. Raises DistIRError for a program that cannot be divided.
        """
        own = mesh or structure.mesh
        return _StageGraphBuilder(structure, schedule, costs, own).build()

    def stages(self, of_nodes: Sequence[int]) -> dict[Operation, int]:
        """
        Maps each forward op to its stage. `of_nodes` lists the stage of each node.
        """
        return dict(zip(self.ops, of_nodes, strict=True))

    def fits(self, of_nodes: Sequence[int]) -> bool:
        """
        Returns whether each stage's parameters, states and residuals of micro-batches
        in flight fit into memory. `of_nodes` lists the stage of each node.
        """
        memory = self.problem.memory
        held = self.problem.stage_memory(of_nodes)
        return memory is None or float(held.max()) <= memory.limit

    def step_time(self, of_nodes: Sequence[int]) -> float:
        """
        Returns an estimate of the seconds of a step. `of_nodes` lists the stage of each
        node. The schedule is run with the work of each stage, and every message between
        stages takes the average time. The estimate is only exact enough to select the
        divisions that are worth simulating.
        """
        work = {
            phase: np.bincount(of_nodes, seconds, self.problem.stages).astype(
                np.float64
            )
            for phase, seconds in self.work.items()
        }
        sent = self.problem.communication(of_nodes)
        return estimated_step(self.schedule, work, sent)


def estimated_step(
    schedule: PipelineSchedule, work: Mapping[str, Floats], sent: float
) -> float:
    """
    Returns an estimate of the seconds of a step with the schedule `schedule`. `work`
    gives the seconds of each stage by phase (`PHASES`), and `sent` the seconds of all
    messages between stages together.
    """
    batches = schedule.micro_batches
    halves = any(a.phase is Phase.BACKWARD_INPUT for a in schedule.actions[0])

    def duration(action: Action) -> float:
        if action.phase is Phase.FORWARD:
            return float(work["forward"][action.stage]) / batches
        return float(work["backward"][action.stage]) / batches / (1 + halves)

    messages = batches * (schedule.stages - 1) * (1 if schedule.forward_only else 2)
    timeline = simulate_schedule(schedule, duration, sent / max(messages, 1))
    once = work["once"]
    return max(end + float(once[action.stage]) for action, end in timeline.end.items())


class _StageGraphBuilder:
    def __init__(
        self,
        structure: Structure,
        schedule: PipelineSchedule,
        costs: OpCosts,
        mesh: Mesh,
    ):
        self.structure, self.schedule, self.costs = structure, schedule, costs
        self.mesh = mesh
        self.ops = structure.forward
        nodes = {op: i for i, op in enumerate(self.ops)}
        # The node of each op of kind EACH.
        self.node: Stages = StagePlacer(structure, nodes).stages
        self.reached = stages_reached(structure, self.node, self.node)
        self.assigned = AssignedStages(structure, self.node)
        self.link = self._slowest_link(costs.hardware)

    def build(self) -> StageGraph:
        work = self._work()
        problem = StageProblem(
            loads=[sum(each) for each in zip(*work.values(), strict=True)],
            edges=self._edges(),
            tensors=self._tensors(),
            stages=self.schedule.stages,
            layers=layer_positions(self.ops),
            memory=self._memory(),
        )
        return StageGraph(self.ops, problem, self.schedule, work)

    def _slowest_link(self, hardware: Hardware) -> RankLink:
        """Returns the slowest link between neighbouring pipeline ranks."""
        size = prod(n for axis, n in self.mesh.axes if axis != TIME_AXIS)
        # Where ranks have meshes of different shapes, not all are as large as this one.
        size = min(size, max(len(hardware.kinds) // self.schedule.ranks, 1))
        return RankLink.slowest(hardware, self.schedule.ranks, size)

    def _work(self) -> dict[str, list[float]]:
        """
        Returns the seconds of each node in a step, by phase: forward, backward, or once
        per step.
        """
        forward, backward = set(self.ops), set(self.structure.backward)
        work = {phase: [0.0] * len(self.ops) for phase in PHASES}
        for op, seconds in self.costs.seconds.items():
            node = self._node_of(op)
            if node is not None:
                phase = PHASES[0 if op in forward else 1 if op in backward else 2]
                work[phase][node] += seconds
        return work

    def _node_of(self, op: Operation) -> int | None:
        if op in self.node:
            return self.node[op]
        if self.structure.kinds.get(op) is Kind.AFTER:
            return self.assigned.after.get(op)
        places = [n for r in op.results for n in self.reached.get(r, ())]
        return min(places, default=None)

    def _edges(self) -> list[tuple[int, int]]:
        found: set[tuple[int, int]] = set()
        forward = set(self.ops)
        for op in self.ops:
            for user in _users(op):
                if user in forward:
                    found.add((self.node[op], self.node[user]))
        return sorted(found)

    def _tensors(self) -> list[SharedTensor]:
        """
        Returns the values that nodes exchange. Values with the same producer and
        consumers are combined into one tensor.
        """
        costs: dict[tuple[int, tuple[int, ...]], float] = {}

        def add(value: SSAValue, producer: int, consumers: Iterable[int]) -> None:
            others = tuple(sorted(set(consumers) - {producer}))
            if others and isinstance(value.type, TensorType):
                key = producer, others
                costs[key] = costs.get(key, 0.0) + self._send_seconds(value)

        for op, node in self.node.items():
            for result in op.results:
                users = {u.operation for u in result.uses}
                add(result, node, (self.node[u] for u in users if u in self.node))
        for arg in self.structure.function.body.block.args:
            add(arg, self.assigned.arguments[arg], self.reached.get(arg, ()))
        return [SharedTensor(p, c, cost) for (p, c), cost in costs.items() if cost > 0]

    def _send_seconds(self, value: SSAValue) -> float:
        """Returns the seconds per step for sending `value` to another rank."""
        sends, size = 1, self._bytes(value)
        is_split = isinstance(over_time(value), SplitPlacement)
        if is_split or isinstance(value.owner, Operation):
            sends = self.structure.micro_batches
        if is_split:
            size /= sends
        return sends * self.link.seconds(size)

    def _bytes(self, value: SSAValue) -> float:
        """
        Returns the bytes of `value` on one device, for all micro-batches together.
        """
        return local_bytes(value, layout_of(value) or Layout(""), self.mesh)

    def _memory(self) -> StageMemory | None:
        """
        Returns the memory that each node needs: parameters, states, sums of gradients,
        and the residuals that the forward pass keeps for the backward pass. If a rank
        has several stages, each stage gets an equal share of the rank's memory.
        """
        fixed, kept = [0.0] * len(self.ops), [0.0] * len(self.ops)
        for argument in arguments_of(self.structure.function):
            node = self.assigned.arguments.get(argument.value)
            if argument.role in ("parameter", "state", "constant") and node is not None:
                fixed[node] += self._bytes(argument.value)
        forward = set(self.ops)
        for op, node in self.node.items():
            for result in op.results:
                users = {use.operation for use in result.uses}
                if op in forward and any(u in self.node for u in users - forward):
                    kept[node] += self._bytes(result)
                elif op not in forward and any(u not in self.node for u in users):
                    fixed[node] += self._bytes(result)
        ranks = self.schedule.ranks
        share = -(-self.schedule.stages // ranks)
        least = min(kind.memory for kind in self.costs.hardware.kinds)
        batches = self.structure.micro_batches
        return StageMemory(
            fixed,
            [size / batches for size in kept],
            in_flight_per_stage(self.schedule),
            least / share,
        )


def _users(op: Operation) -> set[Operation]:
    return {use.operation for result in op.results for use in result.uses}
