"""Chooses the pipeline stage of each op."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import CallOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist_attributes import STAGE, STAGE_START
from distir.errors import DistIRError, did_you_mean
from distir.pipelining.options import SEARCH
from distir.program import describe, scope_of
from distir.sharding.mesh import Mesh
from distir.transforms.pipelines.assigned_stages import (
    ranges_of_starts,
    stages_reached,
    take_requested_stages,
)
from distir.transforms.pipelines.balance import balanced_starts, layer_positions
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.structure import Structure

UNIFORM = "uniform"


def forward_stages(
    structure: Structure, meshes: Sequence[Mesh], request: Sequence[str]
) -> dict[Operation, int]:
    """
    Returns the stage of each forward op. The ops of a stage are consecutive in the
    program. `meshes` has the mesh of each stage, with the axes of the program's mesh.

    `request` is empty, `uniform`, or a list of scopes. `uniform` makes stages with
    equal numbers of calls (layers). A list has, for each stage except the first, the
    scope with which the stage begins. The first op of such a scope gets the attribute
    `dist.stage_start`.

    Without a request, ops that are marked with a stage run on this stage. Without
    marks, stages begin at ops with `dist.stage_start`. Without such ops, the stages get
    equal work, as far as the requested stages of arguments allow. Raises DistIRError if
    the program cannot be divided in this way.
    """
    ops, count = structure.forward, len(meshes)
    requested = take_requested_stages(structure)
    uniform = list(request) == [UNIFORM]
    if request and not uniform:
        if count == 1:
            raise DistIRError(
                f"pipeline: stages={','.join(request)} says where stages begin, but the "
                f"schedule has one stage; leave it out, or choose a larger p"
            )
        _request_starts(ops, request)
    asked = stage_starts(ops, count)
    marked = take_marks(ops)
    if not ops:
        raise DistIRError(
            "pipeline: no op of the program works on a part of the batch, so there is "
            "nothing to pipeline"
        )
    if marked and not request:
        _check_marks(structure, marked, count)
        _forget_starts(ops)
        return marked
    if asked and uniform:
        _check_same(ops, asked, _uniform(ops, count), request)
    if uniform:
        starts = _uniform(ops, count)
    elif asked or count == 1:
        starts = asked
    else:
        layers = layer_positions(ops)
        if len(layers) < count and not requested:
            raise _too_many(count, len(layers), "layers")
        ranges = ranges_of_starts(structure, requested, count) if requested else None
        starts = balanced_starts(structure, meshes, ranges)
        if not starts:
            raise DistIRError(
                f"pipeline: arguments are asked to be on stages ({STAGE}) that no division "
                f"of the program gives, as it uses them in another order; ask for others"
            )
    _forget_starts(ops)
    return {op: bisect_right(starts, i) for i, op in enumerate(ops)}


def _request_starts(ops: Sequence[Operation], request: Sequence[str]) -> None:
    """
    Gives the first op of each scope in `request` the attribute `dist.stage_start`, so
    that a stage begins there. Raises DistIRError if the program already requests a
    start at a different op.
    """
    positions = _requested(ops, request)
    own = [i for i, op in enumerate(ops) if STAGE_START in op.attributes]
    _check_same(ops, own, positions, request)
    for i in positions:
        by = StringAttr(f"stages={','.join(request)}")
        ops[i].attributes.setdefault(STAGE_START, by)


def _check_same(
    ops: Sequence[Operation],
    asked: Sequence[int],
    starts: Sequence[int],
    request: Sequence[str],
) -> None:
    """
    Raises DistIRError if the option `request` contradicts requests in the program.
    `asked` has the positions at which the program requests that a stage begins. Each of
    these positions must be in `starts`, the positions at which stages begin by the
    option.
    """
    for at in asked:
        if at not in starts:
            other = min(starts, key=lambda i: abs(i - at))
            raise DistIRError(
                f"pipeline: {_start_text(ops[at])}, but with stages={','.join(request)} a "
                f"stage begins with {describe(ops[other])}; ask for one of these"
            )


def _forget_starts(ops: Iterable[Operation]) -> None:
    for op in ops:
        op.attributes.pop(STAGE_START, None)


def stage_starts(ops: Sequence[Operation], count: int) -> list[int]:
    """
    Returns the positions in `ops` at which stages 1, 2, ... begin, from
    `dist.stage_start`. Returns an empty list if no op has the attribute or if `count`
    is 1. Raises DistIRError if the number of stages is not `count`.
    """
    starts = [i for i, op in enumerate(ops) if STAGE_START in op.attributes]
    if not starts or count == 1:
        return []
    if len(starts) != count - 1 or starts[0] == 0:
        first = (
            " The first stage begins with the program anyway." if not starts[0] else ""
        )
        raise DistIRError(
            f"pipeline: {'; '.join(_start_text(ops[i]) for i in starts[:8])}: these "
            f"{len(starts)} starts make {len(starts) + 1} stages, but the schedule has "
            f"{count} (pipeline ranks x chunks); choose as many, or other starts.{first}"
        )
    return starts


def is_divided(ops: Iterable[Operation]) -> bool:
    """Whether an op is marked with its stage or as the start of a stage."""
    return any(name in op.attributes for op in ops for name in (STAGE, STAGE_START))


def _start_text(op: Operation) -> str:
    by = op.attributes[STAGE_START]
    who = f" ({by.data})" if isinstance(by, StringAttr) else ""
    return f"a stage is to begin with {describe(op)}{who}"


def mark(stages: Mapping[Operation, int]) -> None:
    """Marks each op with the stage on which it will run."""
    for op, stage in stages.items():
        op.attributes[STAGE] = STAGE.attr(stage)


def take_marks(ops: Iterable[Operation]) -> dict[Operation, int]:
    """Returns the stages with which ops are marked, and removes the marks."""
    return STAGE.taken_from(ops)


def _check_marks(
    structure: Structure, marked: Mapping[Operation, int], count: int
) -> None:
    """
    Raises DistIRError if the marks in `marked` are not a division into `count` stages.
    Every forward op needs a mark, and values must go to later stages only.
    """
    for op in structure.forward:
        if op not in marked:
            raise DistIRError(
                f"pipeline: {describe(op)} has no {STAGE}, though other ops have one; run "
                f"`search-stages` after everything that makes ops of the entry function"
            )
        owners = (v.owner for v in op.operands)
        before = [marked[o] for o in owners if isinstance(o, Operation) and o in marked]
        if max(before, default=0) > marked[op]:
            raise DistIRError(
                f"pipeline: {describe(op)} is marked with stage {marked[op]}, but needs "
                f"what stage {max(before)} computes; values go to later stages only"
            )
    if set(marked.values()) != set(range(count)):
        raise DistIRError(
            f"pipeline: ops are marked with stages {min(marked.values())} to "
            f"{max(marked.values())}, but the schedule has {count}; run `search-stages` "
            f"with the options of this pipeline"
        )


def _too_many(count: int, found: int, what: str) -> DistIRError:
    return DistIRError(
        f"pipeline: {count} stages were asked for, but the program has {found} {what} to "
        f"deal out; choose fewer stages (-p) or fewer chunks"
    )


def _uniform(ops: Sequence[Operation], count: int) -> list[int]:
    """
    Returns the positions at which stages 1, 2, ... begin so that the numbers of calls
    of stages differ by at most one. Raises DistIRError if there are fewer calls than
    stages.
    """
    calls = [i for i, op in enumerate(ops) if isinstance(op, CallOp)]
    if len(calls) < count:
        raise _too_many(count, len(calls), "outlined layers")
    return [calls[stage * len(calls) // count] for stage in range(1, count)]


def _requested(ops: Sequence[Operation], request: Sequence[str]) -> list[int]:
    """
    Returns the position of the first op in each scope of `request`. Raises DistIRError
    if a scope is unknown or if the scopes are not in program order.
    """
    starts: list[int] = []
    for scope in request:
        inside = [
            i
            for i, op in enumerate(ops)
            if scope_of(op) == scope or scope_of(op).startswith(f"{scope}.")
        ]
        if not inside and scope in (UNIFORM, SEARCH):
            raise DistIRError(
                f"pipeline: {scope!r} says of all stages where they begin; give it alone, or "
                f"only scopes"
            )
        if not inside:
            known = list(dict.fromkeys(scope_of(op) for op in ops if scope_of(op)))
            raise DistIRError(
                f"pipeline: no op of the forward pass is in scope {scope!r}; "
                f"{did_you_mean(scope, known)}the scopes are {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}"
            )
        if (starts and inside[0] <= starts[-1]) or inside[0] == 0:
            raise DistIRError(
                f"pipeline: the list of stages goes backwards: {scope!r} begins no later "
                f"than the stage before it; list scopes in the order of the program"
            )
        starts.append(inside[0])
    return starts


class StagePlacer:
    """
    Places ops that are not forward ops on stages. A forward value is available on the
    stage that computes it and on the stages whose forward pass uses it. A backward op
    runs on the stage of its gradients, or on an earlier stage where its other operands
    are available. It thus runs on the stage of the forward op whose gradient it
    computes. If it needs only the output of that forward op, it runs on the stage that
    received the output.
    """

    def __init__(self, structure: Structure, forward: Mapping[Operation, int]):
        self.structure = structure
        self.stages: dict[Operation, int] = dict(forward)
        self._forward = set(structure.forward)
        self._needed = stages_reached(structure, structure.forward, forward)
        self._available: dict[SSAValue, frozenset[int] | None] = {}
        self.last = max(forward.values())
        for op in structure.ops:
            if structure.kinds.get(op) is Kind.BEFORE:
                for result in op.results:
                    self.available(result)
        for op in structure.backward:
            self.stages[op] = self._backward(op)

    def available(self, value: SSAValue) -> frozenset[int] | None:
        """
        Returns the stages on which a forward value is available, or None if it is
        available on all stages.
        """
        if value not in self._available:
            self._available[value] = self._find(value)
        return self._available[value]

    def _find(self, value: SSAValue) -> frozenset[int] | None:
        found = self._needed.get(value, set[int]())
        owner = value.owner
        kind = self.structure.kinds[owner] if isinstance(owner, Operation) else None
        if isinstance(owner, Operation) and kind is Kind.EACH:
            found = found | {self.stages[owner]}
        elif isinstance(owner, Operation) and kind is Kind.BEFORE:
            # Every stage that has its operands computes it again.
            common = _common(self.available(v) for v in owner.operands)
            return common if not found or common is None else common | found
        return frozenset(found) or None

    def _backward(self, op: Operation) -> int:
        gradients: list[int] = []
        others: list[frozenset[int] | None] = []
        for value in op.operands:
            owner = value.owner
            stage = self.stages.get(owner) if isinstance(owner, Operation) else None
            if stage is None or owner in self._forward:
                others.append(self.available(value))
            else:
                gradients.append(stage)
        highest = min(gradients, default=self.last)
        common = _common(others)
        if common is None:
            return highest
        reachable = [s for s in common if s <= highest]
        if reachable:
            return max(reachable)
        known = [max(o) for o in others if o]
        return min(highest, *known)


def _common(sets: Iterable[frozenset[int] | None]) -> frozenset[int] | None:
    common: frozenset[int] | None = None
    for one in sets:
        if one is not None:
            common = one if common is None else common & one
    return common
