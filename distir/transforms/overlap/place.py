"""
Orders a function's ops such that communication and computation overlap.

- A reduction starts where its operand is computed.
- A gather of a parameter (ZeRO stage 3) starts at most so many uses of gathered parameters
  ahead of its own use, as gathered parameters take memory.
- A gather of what a backward kept in parts (sequence parallelism) starts before the
  contraction in front of it, during which it runs.
- Ops that only take reduced values to the function's results (an optimizer's updates) come
  last, in the order in which the reductions started.

The order of collectives is the same on all devices, as there is one program for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import UnitAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.dist import SendOp
from distir.dialects.dist_attributes import ASYNCHRONOUS
from distir.dialects.onnx_ops.traits import VIEWS
from distir.dialects.train_ops.flattening import UnflattenOp
from distir.sharding.rule import rule_for
from distir.transforms.overlap.kinds import REDUCTIONS, chain_from_argument, kind_of

FREE = VIEWS | {"onnx.Constant"}
"""The names of ops that take no time."""


def gathered_beside_contractions(ops: Sequence[Operation]) -> list[Operation]:
    """
    Returns the ops in an order in which gathers of activations start before the last
    contraction in front of their use that does not need them.

    With sequence parallelism, what a forward keeps in parts for the backward is there long
    before it is used. A gather that starts before that contraction completes while it is
    computed, and leaves the links free for what follows.
    """
    found = list(ops)
    for op in ops:
        if isinstance(op, AllGatherOp) and kind_of(op) == "tp":
            _move(found, op)
    return found


def _move(ops: list[Operation], gather: AllGatherOp) -> None:
    """
    Moves a gather, with the views that lead to it, before the last contraction in front of
    it, but not across calls or another op that computes its operand.
    """
    place = {op: i for i, op in enumerate(ops)}
    here = place[gather]
    for there in range(here - 1, -1, -1):
        if isinstance(ops[there], CallOp):
            return
        if rule_for(ops[there]).flops:
            break
    else:
        return
    moved: set[Operation] = {gather}
    pending: list[SSAValue] = [gather.source]
    while pending:
        value = pending.pop()
        owner = value.owner
        if isinstance(value, BlockArgument) or not isinstance(owner, Operation):
            continue
        if place[owner] < there or owner in moved:
            continue
        if not FREE.of(owner):
            return
        moved.add(owner)
        pending += owner.operands
    chain = [op for op in ops[there : here + 1] if op in moved]
    rest = [op for op in ops[there : here + 1] if op not in moved]
    ops[there : here + 1] = [*chain, *rest]


Arrivals = tuple[int, ...]
"""
The indices of a function's results that may still be in flight when it returns, in the
order in which they started.
"""

_STAYING = (CallOp, SendOp, *REDUCTIONS)


@dataclass
class CommunicationPlacer:
    """
    Orders the ops of functions, callees before callers. `arrivals` holds, for the functions
    done so far, the results that they return while these are in flight; `ahead` bounds how
    early gathers start. Communication of these `kinds` (see `write_kinds`) is moved and
    made asynchronous.
    """

    ahead: int
    kinds: Collection[str]
    arrivals: dict[str, Arrivals] = field(default_factory=dict[str, Arrivals])

    def place(self, function: FuncOp) -> None:
        """Orders the ops of a function and marks those that are asynchronous."""
        block = function.body.block
        ops = list(block.ops)
        end = ops.pop()
        assert isinstance(end, ReturnOp)
        ops = _reductions_early(ops, self.kinds)
        if "params" in self.kinds:
            ops = _gathers_ahead(ops, self.ahead)
        if "tp" in self.kinds:
            ops = gathered_beside_contractions(ops)
        ops = self._updates_late(ops, end)
        for op in ops:
            op.detach()
            block.insert_op_before(op, end)
        _mark([*ops, end], self.kinds)
        self.arrivals[function.sym_name.data] = self._returned(ops, end)

    def _arriving(self, op: Operation) -> list[SSAValue]:
        """
        Returns the results of an op that are in flight after it, in the order in which they
        started.
        """
        if isinstance(op, CallOp):
            indices = self.arrivals.get(op.callee.string_value(), ())
            return [op.results[i] for i in indices]
        if isinstance(op, REDUCTIONS) and kind_of(op) in self.kinds:
            return [op.result]
        return []

    def _returned(self, ops: Sequence[Operation], end: ReturnOp) -> Arrivals:
        used = {v for op in ops for v in op.operands}
        started = [v for op in ops for v in self._arriving(op) if v not in used]
        returned = list(end.operands)
        return tuple(returned.index(v) for v in started if v in returned)

    def _updates_late(self, ops: Sequence[Operation], end: ReturnOp) -> list[Operation]:
        """
        Moves to the end the ops that reduced values go through on their way to the results
        and that nothing else needs, in the order in which the last of their operands
        started.
        """
        key: dict[SSAValue, int] = {}
        keys: dict[Operation, int] = {}
        for op in ops:
            known = [key[v] for v in op.operands if v in key]
            if known and not isinstance(op, _STAYING):
                keys[op] = max(known)
                key |= dict.fromkeys(op.results, keys[op])
            for value in self._arriving(op):
                key[value] = len(key)
        late: set[Operation] = {end}
        for op in reversed(ops):
            if op in keys and all(
                use.operation in late for r in op.results for use in r.uses
            ):
                late.add(op)
        moved = sorted((op for op in ops if op in late), key=lambda op: keys[op])
        return [*(op for op in ops if op not in late), *moved]


def _reductions_early(
    ops: Sequence[Operation], kinds: Collection[str]
) -> list[Operation]:
    """Puts each reduction of these kinds right after the op that computes its operand."""
    after: dict[Operation, list[Operation]] = {}
    for op in ops:
        if not isinstance(op, REDUCTIONS) or kind_of(op) not in kinds:
            continue
        if len(list(op.source.uses)) == 1:
            source = op.source.owner
            # After another collective it would only wait for that one.
            if isinstance(source, Operation) and not isinstance(source, CollectiveOp):
                after.setdefault(source, []).append(op)
    moved = {op for group in after.values() for op in group}
    return [
        placed for op in ops if op not in moved for placed in (op, *after.get(op, ()))
    ]


def _gathers_ahead(ops: Sequence[Operation], ahead: int) -> list[Operation]:
    """Moves gathers of arguments ahead by that many uses of gathered arguments."""
    place = {op: i for i, op in enumerate(ops)}
    chains: dict[Operation, list[Operation]] = {}
    for op in ops:
        if isinstance(op, AllGatherOp) and kind_of(op) == "params":
            chain = chain_from_argument(op)
            users = [place[user] for user in _users(op.result) if user in place]
            if chain and users:
                chains.setdefault(ops[min(users)], []).extend(chain)
    consumers = [op for op in ops if op in chains]
    before: dict[Operation, list[Operation]] = {}
    for i, consumer in enumerate(consumers):
        anchor = consumers[i - ahead] if i >= ahead else ops[0]
        before.setdefault(anchor, []).extend(chains[consumer])
    moved = {op for chain in chains.values() for op in chain}
    placed: list[Operation] = []
    for op in ops:
        placed += before.get(op, ())
        if op not in moved:
            placed.append(op)
    return placed


def _users(gathered: SSAValue) -> Iterator[Operation]:
    """Yields the ops that use a gathered value, flat or in its shape."""
    for use in gathered.uses:
        if isinstance(use.operation, UnflattenOp):
            yield from _users(use.operation.tensor)
        else:
            yield use.operation


def _mark(ops: Sequence[Operation], kinds: Collection[str]) -> None:
    """
    Makes collectives of these kinds asynchronous where something is computed between their
    start and the first use of their result; and all sends, if these are among the kinds.
    """
    place = {op: i for i, op in enumerate(ops)}
    busy = [0]
    for op in ops:
        works = not isinstance(op, CollectiveOp | SendOp) and not FREE.of(op)
        busy.append(busy[-1] + works)
    for i, op in enumerate(ops):
        if kind_of(op) not in kinds:
            continue
        if isinstance(op, SendOp):
            op.attributes[ASYNCHRONOUS] = UnitAttr()
        elif isinstance(op, CollectiveOp) and op.CAN_BE_ASYNCHRONOUS:
            first = min((place[u.operation] for u in op.result.uses), default=i)
            is_returned = first == len(ops) - 1
            if is_returned or busy[first] > busy[i + 1]:
                op.attributes[ASYNCHRONOUS] = UnitAttr()


def place_functions(
    reachable: Sequence[FuncOp], ahead: int, kinds: Collection[str]
) -> Mapping[str, Arrivals]:
    """
    Orders the ops of all functions, given callees first, such that communication of these
    kinds overlaps; returns the results of each function that are in flight when it returns.
    """
    placer = CommunicationPlacer(ahead, kinds)
    for function in reachable:
        placer.place(function)
    return placer.arrivals
