"""
Orders the ops of a function so that communication and computation overlap.

- A reduction starts as soon as its operand is computed.
- A gather of a parameter (ZeRO stage 3) starts before its result is used, but not far
  before: only a few gathered parameters may wait for their use, because they take
  memory.
- A gather of a value that the forward pass kept in parts (sequence parallelism) starts
  before the preceding contraction, and runs during this contraction.
- A reduction of activations whose result is needed at once starts before the preceding
  contractions whose results are needed later: in a backward pass, the products for
  gradients of weights.
- Ops that only pass reduced values to the function's results, such as an optimizer's
  updates, come last, in the order in which the reductions started.

The order of collectives is the same on all devices, because all devices run one
program.
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
from distir.dialects.train_ops.float8 import is_scale, rounds_to_float8
from distir.sharding.rule import rule_for
from distir.transforms.overlap.kinds import REDUCTIONS, chain_from_argument, kind_of

FREE = VIEWS | {"onnx.Constant"}
"""The names of ops that take no time."""

_BEFORE_GATHERS = FREE | {"onnx.Transpose"}
"""The names of ops that move together with a gather that needs them."""


def _prepares_gather(op: Operation) -> bool:
    """
    Whether an op may move together with a gather that depends on it: the op rearranges
    a tensor, or rounds it to 8-bit floats.
    """
    return _BEFORE_GATHERS.of(op) or rounds_to_float8(op)


def gathered_beside_contractions(ops: Sequence[Operation]) -> list[Operation]:
    """
    Returns the ops in an order in which gathers of activations overlap with
    contractions. A gather moves before the preceding contraction, unless it depends on
    this contraction. With sequence parallelism, the forward pass kept the gather's
    operand, which is thus available long before. When the contraction ends, the gather
    is finished too, and the links are free for the next communication.
    """
    found = list(ops)
    for op in ops:
        if isinstance(op, AllGatherOp) and kind_of(op) == "tp":
            _move(found, op)
    return found


def _move(ops: list[Operation], gather: AllGatherOp) -> None:
    """
    Moves a gather before the preceding contraction, in place. Views, transpositions and
    roundings to 8 bits between the contraction and the gather move too if the gather
    depends on them. Nothing moves across a call, or if the gather depends on an op of
    any other kind in between.
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
        if not _prepares_gather(owner):
            return
        moved.add(owner)
        pending += owner.operands
    chain = [op for op in ops[there : here + 1] if op in moved]
    rest = [op for op in ops[there : here + 1] if op not in moved]
    ops[there : here + 1] = [*chain, *rest]


def contractions_behind_reductions(ops: Sequence[Operation]) -> list[Operation]:
    """
    Returns the ops in an order in which contractions overlap with reductions of
    activations. A reduction needs this if no contraction runs between the reduction and
    the first use of its result. Contractions in front of the reduction, and the ops
    that use their results, then move behind it. A contraction moves only if the
    reduction does not depend on it, directly or indirectly. No contraction moves past a
    call or an earlier communication of activations. The products for the gradients of
    weights thus run during the reduction of the gradient of activations, as in
    Megatron-Core.
    """
    found = list(ops)
    for op in ops:
        if isinstance(op, REDUCTIONS) and kind_of(op) == "tp" and not is_scale(op):
            _delay_contractions(found, op)
    return found


def _delay_contractions(ops: list[Operation], reduction: CollectiveOp) -> None:
    """
    Moves contractions behind a reduction, in place, if no contraction runs beside the
    reduction yet.
    """
    here = ops.index(reduction)
    users = {use.operation for use in reduction.result.uses}
    for op in ops[here + 1 :]:
        if op in users:
            break
        if _works_long(op):
            return
    first = here
    while first > 0 and not _bounds_delay(ops[first - 1]):
        first -= 1
    # From the reduction backwards: an op stays if an op that stays uses its results.
    needed: set[SSAValue] = set(reduction.operands)
    stays: dict[Operation, bool] = {}
    for op in reversed(ops[first:here]):
        stays[op] = any(r in needed for r in op.results)
        if stays[op]:
            needed.update(op.operands)
    delayed = [op for op in ops[first:here] if not stays[op]]
    if any(map(_works_long, delayed)):
        kept = [op for op in ops[first:here] if stays[op]]
        ops[first : here + 1] = [*kept, reduction, *delayed]


def _bounds_delay(op: Operation) -> bool:
    """Whether contractions in front of `op` must stay in front of `op`."""
    if isinstance(op, CallOp | SendOp):
        return True
    return isinstance(op, CollectiveOp) and not is_scale(op)


Arrivals = tuple[int, ...]
"""
The indices of a function's results that may still be in flight when it returns. They
are in the order in which their communication started.
"""

_STAYING = (CallOp, SendOp, *REDUCTIONS)


@dataclass
class CommunicationPlacer:
    """
    Orders the ops of functions so that communication overlaps with computation. Called
    functions must be ordered before their callers.

    - `ahead`: the number of gathered parameters whose uses may lie between the start of
      a gather and the use of its result;
    - `kinds`: the kinds of communication that are moved and made asynchronous;
    - `arrivals`: for each finished function, its results that are in flight when it
      returns.
    """

    ahead: int
    kinds: Collection[str]
    arrivals: dict[str, Arrivals] = field(default_factory=dict[str, Arrivals])

    def place(self, function: FuncOp) -> None:
        """
        Orders the ops of a function, and marks the communication that is asynchronous.
        """
        block = function.body.block
        ops = list(block.ops)
        end = ops.pop()
        assert isinstance(end, ReturnOp)
        ops = _reductions_early(ops, self.kinds)
        ops = self._second_reductions_late(ops)
        if "params" in self.kinds:
            ops = _gathers_ahead(ops, self.ahead)
        if "tp" in self.kinds:
            ops = contractions_behind_reductions(gathered_beside_contractions(ops))
        ops = self._updates_late(ops, end)
        for op in ops:
            op.detach()
            block.insert_op_before(op, end)
        _mark([*ops, end], self.kinds)
        self.arrivals[function.sym_name.data] = self._returned(ops, end)

    def _arriving(self, op: Operation) -> list[SSAValue]:
        """
        Returns the results of `op` that are still in flight after `op`, in the order in
        which their communication started.
        """
        if isinstance(op, CallOp):
            indices = self.arrivals.get(op.callee.string_value(), ())
            return [op.results[i] for i in indices]
        # A product that waits for a scale is no update of what was reduced.
        if not isinstance(op, REDUCTIONS) or is_scale(op):
            return []
        return [op.result] if kind_of(op) in self.kinds else []

    def _second_reductions_late(self, ops: Sequence[Operation]) -> list[Operation]:
        """
        Returns the ops in a new order. A reduction whose operand is itself the result
        of a reduction in flight moves after the next call or contraction, during which
        the first reduction runs. No device then waits for the first reduction. An
        example is the sum over the groups of hybrid sharding.
        """
        works = [i for i, op in enumerate(ops) if _works_long(op)]
        index = {op: i for i, op in enumerate(ops)}
        started = {v: i for i, op in enumerate(ops) for v in self._arriving(op)}
        after: dict[int, list[Operation]] = {}
        for i, op in enumerate(ops):
            if not isinstance(op, REDUCTIONS) or "dp" not in self.kinds:
                continue
            if kind_of(op) == "dp":
                first = started.get(op.source, len(ops))
                place = next((w for w in works if w > first), first)
                users = [index.get(u.operation, len(ops)) for u in op.result.uses]
                if i < place < min(users, default=len(ops)):
                    after.setdefault(place, []).append(op)
        moved = {op for group in after.values() for op in group}
        placed: list[Operation] = []
        for i, op in enumerate(ops):
            if op not in moved:
                placed.append(op)
            placed += after.get(i, ())
        return placed

    def _returned(self, ops: Sequence[Operation], end: ReturnOp) -> Arrivals:
        used = {v for op in ops for v in op.operands}
        started = [v for op in ops for v in self._arriving(op) if v not in used]
        returned = list(end.operands)
        return tuple(returned.index(v) for v in started if v in returned)

    def _updates_late(self, ops: Sequence[Operation], end: ReturnOp) -> list[Operation]:
        """
        Returns the ops in a new order: ops that only pass reduced values to the
        function's results move to the end. They are sorted by the start of the last
        communication on which they depend.
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
    """
    Returns the ops in a new order: each reduction comes right after the op that
    computes its operand. Only reductions whose kind of communication is in `kinds`
    move.
    """
    after: dict[Operation, list[Operation]] = {}
    for op in ops:
        if not isinstance(op, REDUCTIONS) or kind_of(op) not in kinds:
            continue
        if len(list(op.source.uses)) == 1:
            source = op.source.owner
            # Right after another collective it would only wait for that one.
            if isinstance(source, Operation) and not isinstance(source, CollectiveOp):
                after.setdefault(source, []).append(op)
    moved = {op for group in after.values() for op in group}
    return [
        placed for op in ops if op not in moved for placed in (op, *after.get(op, ()))
    ]


def _works_long(op: Operation) -> bool:
    """
    Whether `op` is a call or a contraction, which takes long enough for communication
    to run at the same time.
    """
    if isinstance(op, CollectiveOp | SendOp) or FREE.of(op):
        return False
    return isinstance(op, CallOp) or bool(rule_for(op).flops)


def _gathers_ahead(ops: Sequence[Operation], ahead: int) -> list[Operation]:
    """
    Returns the ops with each gather of an argument moved earlier. The gather moves past
    the uses of `ahead` earlier gathered arguments, counted back from the first use of
    its own result.
    """
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
    """
    Yields the ops that use a gathered value, directly or after its shape is restored
    from a flat tensor.
    """
    for use in gathered.uses:
        if isinstance(use.operation, UnflattenOp):
            yield from _users(use.operation.tensor)
        else:
            yield use.operation


def _mark(ops: Sequence[Operation], kinds: Collection[str]) -> None:
    """
    Marks communication of the given kinds as asynchronous. A collective is marked if
    ops compute between its start and the first use of its result. Sends are marked in
    any case.
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
    Orders the ops of all functions so that communication overlaps with computation.
    `reachable` has called functions before their callers. `ahead` is the number of
    gathered parameters whose uses may lie between the start of a gather and the use of
    its result. `kinds` are the kinds of communication that move. Returns for each
    function its results that are in flight when it returns.
    """
    placer = CommunicationPlacer(ahead, kinds)
    for function in reachable:
        placer.place(function)
    return placer.arrivals
