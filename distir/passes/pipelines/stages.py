"""Which stage an op runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from xdsl.dialects.func import CallOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.dist import Layout, layout_of
from distir.errors import DistIRError
from distir.passes.pipelines.structure import Kind, Structure
from distir.program import functions, scope_of
from distir.sharding.choice.prices import (
    PRICE_PER_BYTE_SENT,
    PRICE_PER_BYTE_TOUCHED,
    local_bytes,
)
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.rule import infer, rule_for

UNIFORM = "uniform"


class Work:
    """
    What ops cost on each device for a whole batch, in the price of one floating-point
    operation (`distir.sharding.choice`), from their sharding rules.
    """

    def __init__(self, structure: Structure):
        self.mesh: Mesh = structure.mesh
        module = structure.function.parent_op()
        assert module is not None
        self.functions = functions(module)  # type: ignore[arg-type]
        self.of_function: Callable[[str], float] = cache(self._function)

    def of(self, op: Operation) -> float:
        """The work of an op; a call's is that of its function."""
        if isinstance(op, CallOp):
            return self.of_function(op.callee.string_value())
        rule = rule_for(op)
        whole = Layout(self.mesh.name)
        split = 1
        if rule.flops:
            layouts = [layout_of(v) or whole for v in op.operands]
            assignment = infer(rule, layouts, self.mesh).assignment
            for shards in assignment.values():
                for shard in shards:
                    if shard.axis != TIME_AXIS:
                        split *= self.mesh.size(shard.axis)
        touched = sum(self.bytes(v) for v in (*op.operands, *op.results))
        return rule.flops / split + PRICE_PER_BYTE_TOUCHED * touched

    def bytes(self, value: SSAValue) -> float:
        """Bytes of a value on each device."""
        return local_bytes(value, layout_of(value) or Layout(""), self.mesh)

    def _function(self, name: str) -> float:
        return sum(self.of(op) for op in self.functions[name].body.block.ops)


def forward_stages(
    structure: Structure, count: int, request: Sequence[str]
) -> dict[Operation, int]:
    """
    The stage of each forward op: `count` stretches of the program's order. `request` is
    empty for stretches of equal work, `uniform` for equal numbers of calls (layers), or
    names for each stage but the first the scope that it begins with. Raises DistIRError.
    """
    ops = structure.forward
    if not ops:
        raise DistIRError(
            "pipeline: nothing in the program depends on the batch; there is nothing to "
            "pipeline"
        )
    if count == 1 and not request:
        starts: list[int] = []
    elif list(request) == [UNIFORM]:
        starts = _uniform(ops, count)
    elif request:
        starts = _requested(ops, count, request)
    else:
        starts = _balanced(structure, count)
    stages: dict[Operation, int] = {}
    for i, op in enumerate(ops):
        stages[op] = sum(1 for start in starts if start <= i)
    return stages


def _too_many(count: int, found: int, what: str) -> DistIRError:
    return DistIRError(
        f"pipeline: {count} stages were asked for, but the program has {found} {what} to "
        f"deal out; choose fewer stages (-p) or fewer chunks"
    )


def _uniform(ops: Sequence[Operation], count: int) -> list[int]:
    """Where stages 1, 2, ... begin if each gets as many calls, give or take one."""
    calls = [i for i, op in enumerate(ops) if isinstance(op, CallOp)]
    if len(calls) < count:
        raise _too_many(count, len(calls), "outlined layers")
    return [calls[stage * len(calls) // count] for stage in range(1, count)]


def _requested(
    ops: Sequence[Operation], count: int, request: Sequence[str]
) -> list[int]:
    if len(request) != count - 1:
        raise DistIRError(
            f"pipeline: {count} stages begin at {count - 1} places after the first, but "
            f"{len(request)} scopes were given ({', '.join(request)})"
        )
    starts: list[int] = []
    for scope in request:
        inside = [
            i
            for i, op in enumerate(ops)
            if scope_of(op) == scope or scope_of(op).startswith(f"{scope}.")
        ]
        if not inside:
            known = list(dict.fromkeys(scope_of(op) for op in ops if scope_of(op)))
            raise DistIRError(
                f"pipeline: no op of the forward pass is in scope {scope!r}; the scopes "
                f"are {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}"
            )
        if (starts and inside[0] <= starts[-1]) or inside[0] == 0:
            raise DistIRError(
                f"pipeline: the list of stages goes backwards: {scope!r} begins no later "
                f"than the stage before it; list scopes in the order of the program"
            )
        starts.append(inside[0])
    return starts


def _balanced(structure: Structure, count: int) -> list[int]:
    """
    Where stages begin so that the busiest one has as little to do as possible, its
    receiving included; among equals, so that as little as possible is sent.
    """
    ops, work = structure.forward, Work(structure)
    weights = [work.of(op) for op in ops]
    layers = [
        i for i, op in enumerate(ops) if rule_for(op).flops or isinstance(op, CallOp)
    ]
    if len(layers) < count:
        raise _too_many(count, len(layers), "layers")
    crossing = [PRICE_PER_BYTE_SENT * b for b in _crossing(ops, work)]
    total = [0.0]
    for weight in weights:
        total.append(total[-1] + weight)
    # best[j]: the least (busiest stage, sent) for ops before j in the stages so far.
    # A stage holds a layer at least, so that no stage is there for nothing.
    held = [0]
    for i in range(len(ops)):
        held.append(held[-1] + (i in set(layers)))
    unreachable = (float("inf"), 0.0)
    best = [(total[j], 0.0) if held[j] else unreachable for j in range(len(ops) + 1)]
    came: list[list[int]] = []
    for _ in range(1, count):
        after, origin = [unreachable] * len(best), [0] * len(best)
        for j in range(1, len(best)):
            for i in range(1, j):
                if held[j] == held[i]:
                    continue
                busiest = max(best[i][0], total[j] - total[i] + crossing[i])
                option = (busiest, best[i][1] + crossing[i])
                if option < after[j]:
                    after[j], origin[j] = option, i
        best = after
        came.append(origin)
    starts: list[int] = []
    end = len(ops)
    for origin in reversed(came):
        end = origin[end]
        starts.append(end)
    return starts[::-1]


def _crossing(ops: Sequence[Operation], work: Work) -> list[float]:
    """For each position the bytes that ops before it give to forward ops from it on."""
    place = {op: i for i, op in enumerate(ops)}
    crossing = [0.0] * (len(ops) + 1)
    for i, op in enumerate(ops):
        for result in op.results:
            last = max(
                (place[u.operation] for u in result.uses if u.operation in place),
                default=i,
            )
            for position in range(i + 1, last + 1):
                crossing[position] += work.bytes(result)
    return crossing


class Placer:
    """
    Places the ops that are not forward: where what they need is already.

    A forward value is available on the stage that computes it and on those that use it
    forward, to which it is sent anyway. A backward op follows the gradients that it needs
    down the stages, no further than its other operands are available: so it ends up with
    the forward op whose gradient it is.
    """

    def __init__(self, structure: Structure, forward: Mapping[Operation, int]):
        self.structure = structure
        self.stages: dict[Operation, int] = dict(forward)
        self._forward = set(structure.forward)
        self._available: dict[SSAValue, frozenset[int] | None] = {}
        self.last = max(forward.values())
        for op in structure.backward:
            self.stages[op] = self._backward(op)

    def available(self, value: SSAValue) -> frozenset[int] | None:
        """The stages that a forward value is on; None for any."""
        if value not in self._available:
            self._available[value] = self._find(value)
        return self._available[value]

    def _find(self, value: SSAValue) -> frozenset[int] | None:
        found = {
            self.stages[use.operation]
            for use in value.uses
            if use.operation in self.stages and use.operation in self._forward
        }
        owner = value.owner
        if isinstance(owner, Operation):
            kind = self.structure.kinds[owner]
            if kind is Kind.EACH:
                found.add(self.stages[owner])
            elif kind is Kind.BEFORE:
                # It is computed again wherever its operands are.
                common = _common(self.available(v) for v in owner.operands)
                return common if not found or common is None else common | found
        elif isinstance(value, BlockArgument):
            for use in value.uses:
                kind = self.structure.kinds.get(use.operation)
                if kind in (Kind.BEFORE, Kind.DIVIDE):
                    for result in use.operation.results:
                        found |= self._used_forward(result)
        return frozenset(found) or None

    def _used_forward(self, value: SSAValue) -> set[int]:
        found: set[int] = set()
        for use in value.uses:
            if use.operation in self._forward:
                found.add(self.stages[use.operation])
            elif self.structure.kinds.get(use.operation) is Kind.BEFORE:
                for result in use.operation.results:
                    found |= self._used_forward(result)
        return found

    def _backward(self, op: Operation) -> int:
        gradients: list[int] = []
        others: list[frozenset[int] | None] = []
        for value in op.operands:
            owner = value.owner
            if isinstance(owner, Operation) and owner in self.stages:
                if owner not in self._forward:
                    gradients.append(self.stages[owner])
                    continue
            others.append(self.available(value))
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
