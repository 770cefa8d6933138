"""
Searches the sizes of the meshes of the pipeline's ranks, and the division into stages,
for ranks whose meshes may differ in shape.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from time import monotonic

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.errors import DistIRError
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.pipelining import SEARCH, PipelineSchedule, ScheduleOptions
from distir.planning.annotations import add_notes
from distir.planning.stages.costs import OpCosts
from distir.planning.stages.graph import PHASES, StageGraph, estimated_step
from distir.planning.stages.judge import WORTH_SIMULATING, Judge
from distir.sharding.mesh import TIME_AXIS
from distir.transforms.pipelines.balance import Floats, division, layers_before
from distir.transforms.pipelines.division import stage_meshes
from distir.transforms.pipelines.pipeline import schedule_for
from distir.transforms.pipelines.stages import forward_stages, is_divided, mark
from distir.transforms.pipelines.structure import Structure

SECONDS = 10.0
"""The default time limit in seconds, after which no further meshes are simulated."""

MOST_COMBINATIONS = 2000
"""Up to this number of combinations of meshes, all combinations are considered."""

MOST_DIVIDED = 100
"""The number of combinations of meshes for which the program is divided into stages."""


@dataclass(frozen=True, eq=False)
class _Shape:
    """
    A mesh that a stage may have. `sizes` holds the sizes of its axes, and `text` the
    sizes as text, such as `d=2,t=1`. `graph` is the program as a graph in which nodes
    have their costs on this mesh. `hardware` is the cluster.
    """

    sizes: Mapping[str, int]
    text: str
    graph: StageGraph
    hardware: Hardware

    @property
    def devices(self) -> int:
        """The number of devices of the mesh."""
        return prod(self.sizes.values())

    @cached_property
    def loads(self) -> Floats:
        """The seconds of each node in a step on this mesh."""
        return np.array(self.graph.problem.loads, np.float64)

    @cached_property
    def arriving(self) -> tuple[Floats, Floats]:
        """
        The seconds of sending to this mesh the values that cross a cut, for a cut
        before each node. The first array is for values of the forward pass, the second
        for gradients.
        """
        forward, backward = np.zeros((2, len(self.loads) + 2))
        for tensor in self.graph.problem.tensors:
            first, last = min(tensor.consumers), max(tensor.consumers)
            if last > tensor.producer:
                forward[tensor.producer + 1] += tensor.cost
                forward[last + 1] -= tensor.cost
            if first < tensor.producer:
                backward[first + 1] += tensor.cost
                backward[tensor.producer + 1] -= tensor.cost
        return np.cumsum(forward)[:-1], np.cumsum(backward)[:-1]


@dataclass(frozen=True, eq=False)
class _Candidate:
    """
    A mesh for each rank, a stage for each node, and the estimated seconds of a step.
    """

    shapes: tuple[_Shape, ...]
    stages: Sequence[int]
    estimate: float


def search_stage_meshes(
    module: ModuleOp,
    options: ScheduleOptions,
    request: Sequence[str],
    time_limit: float | None = None,
) -> ScheduleOptions:
    """
    Chooses the meshes of the ranks, marks each forward op of a program with its stage,
    and adds a note on the choice. Returns the options with the mesh of each rank. If
    `options.stage_meshes` is `search`, the size of each axis may be any divisor of its
    size in the program's mesh; else the option lists the meshes. `request` is the
    option `stages` of `pipeline`. `time_limit` is in seconds. Raises DistIRError if no
    choice is possible.
    """
    end = monotonic() + (SECONDS if time_limit is None else time_limit)
    search = _Search(module, options, request)
    found = sorted(search.candidates(), key=lambda c: c.estimate)
    alike = [c for c in found if len(set(c.shapes)) == 1]
    slowest = WORTH_SIMULATING * found[0].estimate
    simulated: list[tuple[bool, float, _Candidate]] = []
    for candidate in dict.fromkeys((found[0], *alike[:1], *found)):
        known = candidate in (found[0], *alike[:1])
        if simulated and not known and monotonic() > end:
            break
        if candidate.estimate > slowest and not known and not simulated[0][0]:
            continue
        judge = Judge(module, _with_meshes(options, candidate))
        for each in (candidate, *search.usual(candidate)):
            simulation = judge.simulate(search.stages_of(each))
            simulated.append((not simulation.fits, simulation.step_time_s, each))
        simulated.sort(key=lambda each: each[:2])
    too_large, seconds, best = simulated[0]
    mark(search.stages_of(best))
    text = "; ".join(shape.text for shape in best.shapes)
    note = f"stage meshes: {text}; simulated, a step takes {seconds:.4g} s"
    others = [(s, c) for _, s, c in simulated if c is not best]
    if others:
        note += " (" + ", ".join(
            f"{'; '.join(x.text for x in c.shapes)}: {s:.4g} s" for s, c in others[:4]
        )
        note += ")"
    add_notes(module, [note + ("; it does not fit into memory" if too_large else "")])
    return _with_meshes(options, best)


def _with_meshes(options: ScheduleOptions, candidate: _Candidate) -> ScheduleOptions:
    return replace(options, stage_meshes=tuple(s.text for s in candidate.shapes))


class _Search:
    """The meshes that ranks may have, with the costs of a program on each mesh."""

    def __init__(
        self, module: ModuleOp, options: ScheduleOptions, request: Sequence[str]
    ):
        self.options, self._module = options, module
        self.structure = Structure(module)
        self.schedule: PipelineSchedule = schedule_for(self.structure, options)
        ops = self.structure.forward
        self._layers = layers_before(ops)
        self._fixed: list[int] | None = None
        if list(request) not in ([], [SEARCH]) or is_divided(ops):
            meshes = [self.structure.mesh] * self.schedule.stages
            asked = forward_stages(self.structure, meshes, request)
            self._fixed = [asked[op] for op in ops]
        self._known: dict[tuple[tuple[str, int], ...], _Shape] = {}

    def stages_of(self, candidate: _Candidate) -> dict[Operation, int]:
        """Returns the stage of each forward op in the division `candidate`."""
        return candidate.shapes[0].graph.stages(candidate.stages)

    def candidates(self) -> list[_Candidate]:
        """
        Returns combinations of meshes for the ranks, each with the division into stages
        that suits it best.
        """
        if self.options.stage_meshes != (SEARCH,):
            asked = [self._shape(sizes) for sizes in self.options.stage_shapes()]
            return [self._estimated(asked, self._fixed)]
        mesh = self.structure.mesh
        axes = [axis for axis, _ in mesh.axes if axis != TIME_AXIS]
        ranks = self.options.p
        most = len(self._shape(dict.fromkeys(axes, 1)).hardware.kinds)
        if ranks > most:
            raise DistIRError(
                f"pipeline: {ranks} ranks need a device each, but the cluster has {most}; "
                f"choose fewer ranks (-p) or a larger cluster"
            )
        every = product(*(_divisors(mesh.size(axis)) for axis in axes))
        shapes = [
            self._shape(dict(zip(axes, sizes, strict=True)))
            for sizes in every
            if prod(sizes) <= most - ranks + 1
        ]
        fitting = [
            combination
            for combination in _combinations(shapes, ranks)
            if sum(shape.devices for shape in combination) <= most
        ]
        # If work could be divided at will, a step would take this long.
        fitting.sort(key=lambda c: 1 / sum(1 / max(s.loads.sum(), 1e-12) for s in c))
        alike = [c for c in fitting if len(set(c)) == 1]
        chosen = dict.fromkeys((*fitting[:MOST_DIVIDED], *alike))
        return [self._estimated(each, self._fixed) for each in chosen]

    def _shape(self, sizes: Mapping[str, int]) -> _Shape:
        key = tuple(sizes.items())
        if key not in self._known:
            text = ",".join(f"{axis}={size}" for axis, size in key)
            costs = OpCosts.of(self._module, self.structure, text)
            mesh = self.structure.mesh.with_sizes(sizes)
            graph = StageGraph.of(self.structure, self.schedule, costs, mesh)
            self._known[key] = _Shape(sizes, text, graph, costs.hardware)
        return self._known[key]

    def usual(self, candidate: _Candidate) -> list[_Candidate]:
        """
        Returns a list with the division that `pipeline` makes without a search for the
        meshes of `candidate`. The list is empty if that division is the candidate's
        own, or if the user has fixed the stages.
        """
        if self._fixed is not None:
            return []
        sizes = [shape.sizes for shape in candidate.shapes]
        meshes = stage_meshes(self.structure, self.schedule, sizes)
        found = forward_stages(self.structure, meshes, ())
        stages = [found[op] for op in self.structure.forward]
        own = self._estimated(candidate.shapes, stages)
        return [] if stages == list(candidate.stages) else [own]

    def _estimated(
        self, shapes: Sequence[_Shape], stages: Sequence[int] | None
    ) -> _Candidate:
        """
        Returns a candidate with the meshes `shapes` and an estimate of its step time.
        `stages` lists the stage of each node. If `stages` is None, the division is
        chosen such that the busiest stage has the least possible load, including the
        time to receive its inputs.
        """
        schedule = self.schedule
        own = [shapes[schedule.stage_rank(s)] for s in range(schedule.stages)]
        arriving = np.array(
            [
                _arriving(before, after)
                for before, after in zip([own[0], *own[:-1]], own, strict=True)
            ]
        )
        if stages is None:
            loads = np.array([shape.loads for shape in own])
            starts = division(loads, arriving, self._layers)
            stages = [bisect_right(starts, node) for node in range(loads.shape[1])]
        firsts = [stages.index(s) for s in range(1, schedule.stages)]
        sent = sum(float(arriving[s + 1, at]) for s, at in enumerate(firsts))
        work = {
            phase: np.array(
                [
                    np.bincount(stages, shape.graph.work[phase], len(own))[s]
                    for s, shape in enumerate(own)
                ]
            )
            for phase in PHASES
        }
        estimate = estimated_step(schedule, work, sent)
        return _Candidate(tuple(shapes), stages, estimate)


def _arriving(before: _Shape, after: _Shape) -> Floats:
    """
    Returns the seconds of sending the values that cross a cut between two meshes, for a
    cut before each node. If one mesh has fewer devices than the other, each of its
    devices sends several times.
    """
    forward, gradients = after.arriving[0], before.arriving[1]
    ratio = after.devices / before.devices
    return forward * max(ratio, 1.0) + gradients * max(1 / ratio, 1.0)


def _divisors(size: int) -> list[int]:
    return [n for n in range(1, size + 1) if size % n == 0]


def _combinations(shapes: Sequence[_Shape], ranks: int) -> Iterator[tuple[_Shape, ...]]:
    """
    Yields tuples with a mesh for each rank. If there are too many tuples, yields only
    those in which the mesh changes at most once along the ranks.
    """
    if len(shapes) ** ranks <= MOST_COMBINATIONS:
        yield from product(shapes, repeat=ranks)
        return
    for first, second in product(shapes, repeat=2):
        for change in range(1, ranks if first is not second else 2):
            yield (first,) * change + (second,) * (ranks - change)
