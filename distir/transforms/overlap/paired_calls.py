"""
Computes the forward pass of one micro-batch beside the backward pass of another
micro-batch, as DualPipe does (DeepSeek-AI 2024). Where experts are on several devices,
a layer waits for its all-to-alls. Therefore two consecutive calls of a rank that do not
depend on each other become one call of a function that has the ops of both. The two
sets of ops take turns at all-to-alls: while the rows of one micro-batch travel, the
device computes with the rows of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.kinds import ExchangeKind
from distir.dialects.dist import layout_of
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.checks import FLOATS
from distir.program import (
    ancestors,
    entry_function,
    forward_results,
    functions,
    return_op,
)
from distir.program.functions import erase_unreachable, unique_name
from distir.transforms.repeats.inlining import inline_call

_Pairs = dict[Operation, CallOp]
"""The backward call of a pair, by its forward call."""


def pair_calls(module: ModuleOp) -> bool:
    """
    Joins forward and backward calls in the entry function of a pipeline, in place. A
    forward call is joined with the backward call that follows it on the same mesh, if
    both exchange values by all-to-alls and neither needs the other's results. The order
    of the calls on each mesh stays the same, and results do not change. Returns whether
    calls were joined.
    """
    entry = entry_function(module)
    *ops, end = entry.body.block.ops
    pairs = _candidates(entry, ops, functions(module))
    groups = _ordered(ops, pairs) if pairs else []
    if all(len(group) == 1 for group in groups):
        return False
    for op in ops:
        op.detach()
    joined: dict[tuple[str, str], FuncOp] = {}
    for group in groups:
        for op in group:
            Rewriter.insert_op(op, InsertPoint.before(end))
        if len(group) > 1:
            _join(module, group, joined)
    erase_unreachable(module)
    return True


def _candidates(
    entry: FuncOp, ops: Sequence[Operation], known: dict[str, FuncOp]
) -> _Pairs:
    """
    Returns the pairs of a forward and a backward call that follow each other on a mesh
    and that both contain all-to-alls.
    """
    exchanges: dict[str, bool] = {}
    for name, function in known.items():
        _find_exchanges(name, function, known, exchanges)
    returned = return_op(entry).operands
    forward = ancestors([returned[i] for i in forward_results(entry)])
    pairs: _Pairs = {}
    latest: dict[str, CallOp] = {}
    for op in ops:
        if not isinstance(op, CallOp) or (mesh := _mesh_of(op)) is None:
            continue
        before = latest.get(mesh)
        if before is not None and before in forward and op not in forward:
            calls = before, op
            needs = any(value.owner is before for value in op.operands)
            if not needs and all(
                exchanges[call.callee.string_value()] for call in calls
            ):
                pairs[before] = op
        latest[mesh] = op
    return pairs


def _find_exchanges(
    name: str, function: FuncOp, known: dict[str, FuncOp], found: dict[str, bool]
) -> bool:
    """
    Returns whether a function, or a function that it calls, exchanges floats by
    all-to-alls. Records the answer in `found`.
    """
    if name not in found:
        found[name] = any(
            _find_exchanges(callee, known[callee], known, found)
            if isinstance(op, CallOp) and (callee := op.callee.string_value())
            else _exchanges(op)
            for op in function.body.block.ops
        )
    return found[name]


def _exchanges(op: Operation) -> bool:
    """
    Whether `op` is an all-to-all of floats. The answer is False for an all-to-all of
    integers, because it is short.
    """
    return isinstance(op, ExchangeKind) and isinstance(element_type(op.source), FLOATS)


def _mesh_of(call: CallOp) -> str | None:
    """
    Returns the name of the mesh on which the called stage function runs, or None if the
    function has no mesh.
    """
    for value in (*call.results, *call.operands):
        layout = layout_of(value)
        if layout is not None:
            return layout.mesh
    return None


def _ordered(ops: Sequence[Operation], pairs: _Pairs) -> list[tuple[Operation, ...]]:
    """
    Returns the ops in an order in which the calls of each pair follow each other, as
    groups: a pair is a group of two ops, any other op a group of one. All other ops
    keep their order as far as possible. If the calls of a pair depend on each other,
    the pair is dissolved.
    """
    first_of: dict[Operation, Operation] = {b: a for a, b in pairs.items()}
    place = {op: i for i, op in enumerate(ops)}
    needs = _dependencies(ops)
    users: dict[Operation, list[Operation]] = {op: [] for op in ops}
    for op, sources in needs.items():
        for source in sources:
            users[source].append(op)
    missing = {op: len(sources) for op, sources in needs.items()}
    apart: set[Operation] = set()
    done: set[Operation] = set()
    ready = [place[op] for op in ops if not missing[op]]
    heapify(ready)
    # Forward calls that wait for the other call of their pair.
    waiting: list[int] = []
    order: list[tuple[Operation, ...]] = []

    def finish(group: tuple[Operation, ...]) -> None:
        order.append(group)
        done.update(group)
        for user in (user for op in group for user in users[op]):
            missing[user] -= 1
            if not missing[user] and user not in done:
                heappush(ready, place[user])

    while ready or waiting:
        if not ready:
            # The second call of the first pair needs the results of another pair.
            op = ops[heappop(waiting)]
            if op not in done:
                apart.add(op)
                finish((op,))
            continue
        op = ops[heappop(ready)]
        if op in done:
            continue
        first = first_of.get(op)
        if op in pairs and op not in apart:
            # On its mesh, the second call waits for the first one alone.
            second = pairs[op]
            if missing[second] == 1:
                finish((op, second))
            else:
                heappush(waiting, place[op])
        elif first is not None and first not in done:
            finish((first, op))
        else:
            finish((op,))
        for number in [n for n in waiting if missing[pairs[_call(ops[n])]] == 1]:
            waiting.remove(number)
            heapify(waiting)
            heappush(ready, number)
    return order


def _call(op: Operation) -> CallOp:
    assert isinstance(op, CallOp)
    return op


def _dependencies(ops: Sequence[Operation]) -> dict[Operation, set[Operation]]:
    """
    Returns for each op the ops that must run before it: the ops that compute its
    operands and, for a call, the preceding call on the same mesh.
    """
    own = set(ops)
    needs: dict[Operation, set[Operation]] = {}
    latest: dict[str, CallOp] = {}
    for op in ops:
        owners = (value.owner for value in op.operands)
        needs[op] = {o for o in owners if isinstance(o, Operation) and o in own}
        if isinstance(op, CallOp) and (mesh := _mesh_of(op)) is not None:
            if mesh in latest:
                needs[op].add(latest[mesh])
            latest[mesh] = op
    return needs


def _join(
    module: ModuleOp,
    group: tuple[Operation, ...],
    joined: dict[tuple[str, str], FuncOp],
) -> None:
    """
    Replaces the two calls in `group` by one call of a function with the ops of both.
    `joined` has the functions that were made before; the key of each is the names of
    the two functions that it joins.
    """
    calls = [_call(op) for op in group]
    first, second = (call.callee.string_value() for call in calls)
    if (first, second) not in joined:
        made = _joined_function(module, calls, unique_name(module, f"{first}_{second}"))
        module.body.block.insert_op_before(made, entry_function(module))
        joined[first, second] = made
    function = joined[first, second]
    operands = [value for call in calls for value in call.operands]
    results = [value for call in calls for value in call.results]
    new = CallOp(function.sym_name.data, operands, [value.type for value in results])
    Rewriter.insert_op(new, InsertPoint.after(calls[1]))
    for old, value in zip(results, new.results, strict=True):
        value.name_hint = old.name_hint
        old.replace_all_uses_with(value)
    for call in reversed(calls):
        Rewriter.erase_op(call)


def _joined_function(module: ModuleOp, calls: Sequence[CallOp], name: str) -> FuncOp:
    """
    Returns a function called `name` that does the work of all `calls`, with their ops
    taking turns. The function is not added to the module.
    """
    known = functions(module)
    callees = [known[call.callee.string_value()] for call in calls]
    inputs = [t for f in callees for t in f.function_type.inputs.data]
    outputs = [t for f in callees for t in f.function_type.outputs.data]
    function = FuncOp(name, (inputs, outputs), visibility=StringAttr("private"))
    function.attributes.update(callees[0].attributes)
    block = function.body.block
    arguments = list(block.args)
    for argument, old in zip(
        arguments, [a for f in callees for a in f.body.block.args], strict=True
    ):
        argument.name_hint = old.name_hint
    inner: list[CallOp] = []
    for call in calls:
        count = len(call.operands)
        inner.append(CallOp(call.callee, arguments[:count], call.result_types))
        del arguments[:count]
    end = ReturnOp(*[value for call in inner for value in call.results])
    block.add_op(end)
    bodies: list[list[Operation]] = []
    for call in inner:
        before = set(block.ops)
        block.insert_op_before(call, end)
        _inline(block.ops, known)
        bodies.append([op for op in block.ops if op not in before])
    for op in _in_turns(*bodies):
        op.detach()
        block.insert_op_before(op, end)
    return function


def _inline(ops: Iterable[Operation], known: dict[str, FuncOp]) -> None:
    """
    Inlines all calls among `ops`, the ops of a block. Calls in the inlined bodies are
    inlined, too.
    """
    while calls := [op for op in ops if isinstance(op, CallOp)]:
        for call in calls:
            inline_call(call, known[call.callee.string_value()])


def _in_turns(
    first: Sequence[Operation], second: Sequence[Operation]
) -> list[Operation]:
    """
    Returns the ops of two bodies in one order. After each all-to-all of one body, the
    ops of the other body follow, up to its next all-to-all.
    """
    chunks = [_chunks(first), _chunks(second)]
    count = max(map(len, chunks))
    turns = (part for i in range(count) for own in chunks for part in own[i : i + 1])
    return [op for part in turns for op in part]


def _chunks(ops: Sequence[Operation]) -> list[list[Operation]]:
    """
    Divides ops into consecutive parts. Each part ends with an all-to-all, except the
    last part, which has the remaining ops.
    """
    found: list[list[Operation]] = [[]]
    for op in ops:
        found[-1].append(op)
        if _exchanges(op):
            found.append([])
    return found
