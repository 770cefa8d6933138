"""
The lifetimes of a program's values. The functions are followed in the order in which
they run, call by call.

A value lives from the op that computes it to its last use, in any function. A view of a
value has no memory of its own. A moment is the run of one op; moments are numbered in
the order of execution.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.planning.graph.nodes import Port
from distir.planning.layouts.reshards import (
    LayoutBody,
    LayoutNode,
    LayoutPort,
    Use,
)
from distir.program import updated_arguments


class Computed(NamedTuple):
    """
    The memory of a node's result, in the layout in which the node computes the result.
    """

    port: LayoutPort


class Partial(NamedTuple):
    """
    A second buffer for a node's result that is partial. The buffer is in use while the
    result is reduced, once for all its uses.
    """

    port: LayoutPort


class Fresh(NamedTuple):
    """
    A buffer for a value in the layout of one use, if this layout differs from the
    layout of the value itself.
    """

    port: LayoutPort
    use: Use


class Updated(NamedTuple):
    """
    A buffer for a result that updates an argument, in the argument's layout. The buffer
    is needed if the layout in which the result is computed differs from the argument's
    layout.
    """

    port: LayoutPort
    use: Use


class Workspace(NamedTuple):
    """The temporary memory of an op while it runs, besides its operands and results."""

    op: Operation
    node: LayoutNode


What = Computed | Partial | Fresh | Updated | Workspace


@dataclass(eq=False)
class _Buffer:
    what: What
    start: int
    end: int


class Interval(NamedTuple):
    """
    A piece of memory (`what`) that is in use from the moment `start` until just before
    the moment `end`. `times` is the number of pieces like this one.
    """

    what: What
    start: int
    end: int
    times: int


class Lifetimes:
    """
    Follows a program and records when its memory is in use.

    - `is_view`: a function: whether an op returns a view of its operand;
    - `may_need`: a function: whether a piece of memory is needed under any alternative;
    - `is_sum`: a function: whether a value is accumulated over micro-batches. The
      memory of such a value is in use from the start of the program.

    Of several calls that share their choices, only the first call and the last call add
    moments to the record. Between these two, the memory in use grows or shrinks by the
    same amount with every call, so the peak is in the first or the last call.
    """

    def __init__(
        self,
        entry: LayoutBody,
        is_view: Callable[[Operation], bool],
        may_need: Callable[[What], bool],
        is_sum: Callable[[LayoutPort], bool],
    ):
        self.is_view = is_view
        self.may_need = may_need
        self.is_sum = is_sum
        self._known: dict[What, bool] = {}
        self.buffers: list[_Buffer] = []
        self.moments: list[int] = []
        self.now = 0
        self._ends: dict[LayoutBody, dict[Operation, bool]] = {}
        arguments = [[self._new(Computed(Port(node, 0)))] for node in entry.arguments]
        self._updates = {
            entry.function.body.block.last_op.operands[result]: argument  # type: ignore[union-attr]
            for result, argument in updated_arguments(entry.function).items()
        }
        results = self._run(entry, arguments, True, True)
        for buffers in (*arguments, *results):
            self._use(buffers)

    def intervals(self) -> list[Interval]:
        """
        Returns all pieces of memory with the moments during which they are in use.
        Moments are numbered from 0.
        """
        found: Counter[tuple[What, int, int]] = Counter()
        for buffer in self.buffers:
            start = bisect_left(self.moments, buffer.start)
            end = bisect_left(self.moments, buffer.end)
            if start < end:
                found[buffer.what, start, end] += 1
        return [Interval(*key, count) for key, count in found.items()]

    def _new(self, what: What, after: int = 0) -> _Buffer:
        start = self.now + after
        self.buffers.append(_Buffer(what, start, start + 1))
        return self.buffers[-1]

    def _use(self, buffers: Sequence[_Buffer]) -> None:
        for buffer in buffers:
            buffer.end = self.now + 1

    def _run(
        self,
        body: LayoutBody,
        arguments: Sequence[list[_Buffer]],
        counts: bool,
        is_entry: bool = False,
    ) -> list[list[_Buffer]]:
        """
        Follows one call of `body` and returns the buffers of its results. `arguments`
        holds the buffers of its arguments. `counts` says whether the ops of this call
        add moments to the record.
        """
        ends = self._end_instances(body)
        block = body.function.body.block
        held: dict[SSAValue, list[_Buffer]] = {}
        ports: dict[SSAValue, LayoutPort] = {}
        for arg, node, buffers in zip(
            block.args, body.arguments, arguments, strict=True
        ):
            held[arg], ports[arg] = buffers, Port(node, 0)
        for op in block.ops:
            if isinstance(op, ReturnOp):
                return [held[v] for v in op.operands]
            at_end = counts and ends[op]
            if isinstance(op, CallOp):
                callee = body.calls[op]
                taken = [
                    [*held[v], *self._fresh(ports[v], Use(callee.arguments[i], (0,)))]
                    for i, v in enumerate(op.operands)
                ]
                for buffers in taken:
                    self._use(buffers)
                results = self._run(callee, taken, at_end)
                own = callee.results
            else:
                results, own = self._op(body, op, held, ports)
            for value, buffers, port in zip(op.results, results, own, strict=True):
                self._use(buffers)
                if is_entry and self.is_sum(port):
                    for buffer in buffers:
                        buffer.start = 0
                kept = body.kept.get(value)
                if kept is not None:
                    self._new(Partial(port))
                    port = Port(kept, 0)
                    buffers = [self._new(Computed(port), 1)]
                elif is_entry and value in self._updates:
                    target = body.arguments[self._updates[value]]
                    buffers = [self._new(Updated(port, Use(target, (0,))))]
                held[value], ports[value] = buffers, port
            if at_end and not isinstance(op, CallOp):
                self.moments.append(self.now)
            self.now += 1
        raise AssertionError("a function ends in func.return")

    def _op(
        self,
        body: LayoutBody,
        op: Operation,
        held: dict[SSAValue, list[_Buffer]],
        ports: dict[SSAValue, LayoutPort],
    ) -> tuple[list[list[_Buffer]], list[LayoutPort]]:
        node = body.ops[op]
        operands: dict[SSAValue, list[int]] = {}
        for i, value in enumerate(op.operands):
            operands.setdefault(value, []).append(i)
        taken: list[_Buffer] = []
        first: list[_Buffer] = []
        for value, indices in operands.items():
            fresh = self._fresh(ports[value], Use(node, tuple(indices)))
            taken += [*held[value], *fresh]
            first = first or [*held[value], *fresh]
        self._use(taken)
        self._if_needed(Workspace(op, node))
        own = [Port(node, i) for i in range(len(op.results))]
        if self.is_view(op):
            return [first], own
        # What updates an argument may take its memory (see `Updated`).
        return [
            []
            if value in self._updates and value not in body.kept
            else [self._new(Computed(port))]
            for value, port in zip(op.results, own, strict=True)
        ], own

    def _fresh(self, port: LayoutPort, use: Use) -> list[_Buffer]:
        return self._if_needed(Fresh(port, use))

    def _if_needed(self, what: What) -> list[_Buffer]:
        if what not in self._known:
            self._known[what] = self.may_need(what)
        return [self._new(what)] if self._known[what] else []

    def _end_instances(self, body: LayoutBody) -> dict[Operation, bool]:
        """
        Maps each op of a function to whether it is the first or the last of the ops
        that share its choice.
        """
        if body not in self._ends:
            places: dict[Hashable, list[Operation]] = {}
            for op in body.function.body.block.ops:
                if isinstance(op, CallOp):
                    places.setdefault(body.calls[op], []).append(op)
                elif not isinstance(op, ReturnOp):
                    places.setdefault(body.ops[op], []).append(op)
            ends = {op for ops in places.values() for op in (ops[0], ops[-1])}
            self._ends[body] = {op: op in ends for ops in places.values() for op in ops}
        return self._ends[body]
