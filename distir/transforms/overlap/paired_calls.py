"""
Computes the forward pass of one micro-batch beside the backward pass of another
micro-batch, as DualPipe does (DeepSeek-AI 2024). Where experts are on several devices,
a layer waits for its all-to-alls. Therefore two consecutive calls of a rank that do not
depend on each other become one call of a function that has the ops of both. The two
sets of ops take turns at all-to-alls: while the rows of one micro-batch travel, the
device computes with the rows of the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    order = paired_order(_dependencies(ops), pairs) if pairs else []
    if all(len(group) == 1 for group in order):
        return False
    for op in ops:
        op.detach()
    joined: dict[tuple[str, str], FuncOp] = {}
    for group in order:
        for place in group:
            Rewriter.insert_op(ops[place], InsertPoint.before(end))
        if len(group) > 1:
            _join(module, [ops[place] for place in group], joined)
    erase_unreachable(module)
    return True


def _candidates(
    entry: FuncOp, ops: Sequence[Operation], known: dict[str, FuncOp]
) -> dict[int, int]:
    """
    Returns the pairs of a forward and a backward call that follow each other on a mesh
    and that both contain all-to-alls, as places among `ops`: the backward call by its
    forward call.
    """
    exchanges: dict[str, bool] = {}
    for name, function in known.items():
        _find_exchanges(name, function, known, exchanges)
    returned = return_op(entry).operands
    forward = ancestors([returned[i] for i in forward_results(entry)])
    pairs: dict[int, int] = {}
    latest: dict[str, tuple[int, CallOp]] = {}
    for place, op in enumerate(ops):
        if not isinstance(op, CallOp) or (mesh := _mesh_of(op)) is None:
            continue
        first, before = latest.get(mesh, (0, None))
        if before is not None and before in forward and op not in forward:
            calls = before, op
            needs = any(value.owner is before for value in op.operands)
            if not needs and all(
                exchanges[call.callee.string_value()] for call in calls
            ):
                pairs[first] = place
        latest[mesh] = place, op
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
            else exchanges_floats(op)
            for op in function.body.block.ops
        )
    return found[name]


def exchanges_floats(op: Operation) -> bool:
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


def paired_order(
    needs: Sequence[Collection[int]], pairs: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """
    Returns an order of ops in which the calls of each pair follow each other, as
    groups: a pair is a group of two ops, any other op a group of one. Ops are given by
    their places in the present order: `needs` has the ops that must run before each op,
    and `pairs` the second call of a pair by its first call. All other ops keep their
    order as far as possible. If the calls of a pair depend on each other, the pair is
    dissolved.
    """
    first_of = {second: first for first, second in pairs.items()}
    users: list[list[int]] = [[] for _ in needs]
    for place, sources in enumerate(needs):
        for source in sources:
            users[source].append(place)
    missing = [len(sources) for sources in needs]
    apart: set[int] = set()
    done: set[int] = set()
    # In ascending order, which is a heap.
    ready = [place for place, count in enumerate(missing) if not count]
    # First calls that wait for the second call of their pair.
    waiting: list[int] = []
    order: list[tuple[int, ...]] = []

    def finish(group: tuple[int, ...]) -> None:
        order.append(group)
        done.update(group)
        for user in (user for place in group for user in users[place]):
            missing[user] -= 1
            if not missing[user] and user not in done:
                heappush(ready, user)

    while ready or waiting:
        if not ready:
            # The second call of the first pair needs the results of another pair.
            place = heappop(waiting)
            if place not in done:
                apart.add(place)
                finish((place,))
            continue
        place = heappop(ready)
        if place in done:
            continue
        first = first_of.get(place)
        if place in pairs and place not in apart:
            # On its mesh, the second call waits for the first one alone.
            if missing[pairs[place]] == 1:
                finish((place, pairs[place]))
            else:
                heappush(waiting, place)
        elif first is not None and first not in done:
            finish((first, place))
        else:
            finish((place,))
        for first in [n for n in waiting if missing[pairs[n]] == 1]:
            waiting.remove(first)
            heapify(waiting)
            heappush(ready, first)
    return order


def _dependencies(ops: Sequence[Operation]) -> list[set[int]]:
    """
    Returns for each op the places of the ops that must run before it: the ops that
    compute its operands and, for a call, the preceding call on the same mesh.
    """
    places = {op: place for place, op in enumerate(ops)}
    needs: list[set[int]] = []
    latest: dict[str, int] = {}
    for place, op in enumerate(ops):
        owners = (value.owner for value in op.operands)
        needs.append(
            {places[o] for o in owners if isinstance(o, Operation) and o in places}
        )
        if isinstance(op, CallOp) and (mesh := _mesh_of(op)) is not None:
            if mesh in latest:
                needs[-1].add(latest[mesh])
            latest[mesh] = place
    return needs


def _join(
    module: ModuleOp,
    group: Sequence[Operation],
    joined: dict[tuple[str, str], FuncOp],
) -> None:
    """
    Replaces the two calls in `group` by one call of a function with the ops of both.
    `joined` has the functions that were made before; the key of each is the names of
    the two functions that it joins.
    """
    calls = [op for op in group if isinstance(op, CallOp)]
    first, second = (call.callee.string_value() for call in calls)
    if (first, second) not in joined:
        known = functions(module)
        name = unique_name(module, f"{first}_{second}")
        made = joined_function([known[first], known[second]], known, name)
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


def joined_function(
    callees: Sequence[FuncOp], known: Mapping[str, FuncOp], name: str
) -> FuncOp:
    """
    Returns a function called `name` that does the work of `callees`, with their ops
    taking turns. Its arguments and results are theirs, one after the other. `known` has
    the functions that they call, by name; calls are inlined.
    """
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
    for callee in callees:
        types = callee.function_type
        count = len(types.inputs)
        symbol, results = callee.sym_name.data, types.outputs.data
        inner.append(CallOp(symbol, arguments[:count], results))
        del arguments[:count]
    end = ReturnOp(*[value for call in inner for value in call.results])
    block.add_op(end)
    bodies: list[list[Operation]] = []
    for call, callee in zip(inner, callees, strict=True):
        before = set(block.ops)
        block.insert_op_before(call, end)
        inline_call(call, callee)
        _inline(block.ops, known)
        bodies.append([op for op in block.ops if op not in before])
    for op in _in_turns(*bodies):
        op.detach()
        block.insert_op_before(op, end)
    return function


def _inline(ops: Iterable[Operation], known: Mapping[str, FuncOp]) -> None:
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
        if exchanges_floats(op):
            found.append([])
    return found
