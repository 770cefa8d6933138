"""
The states of an optimizer in the host's memory (ZeRO-Offload, Ren et al. 2021, without
their update on the host): a device has them while it updates their parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.host import is_on_host, on_host
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.train_ops.offload import FetchOp, OffloadOp
from distir.program import (
    argument_roles,
    entry_function,
    parameters_of_states,
    return_op,
    updated_arguments,
)
from distir.sharding.layout import local_type
from distir.sharding.mesh import Mesh, meshes

GROUP_BYTES = 2**26
"""
The bytes of states that a device fetches at most before it stores some again: large enough
for links and fused updates to be fast, small next to a device's memory.
"""


class _State(NamedTuple):
    """
    An argument of the program, the index of the result that updates it, and the op that takes
    it first, with that op's place.
    """

    argument: BlockArgument
    result: int
    user: Operation
    place: int


def offload_states(module: ModuleOp, group_bytes: int = GROUP_BYTES) -> bool:
    """
    Keeps the states that belong to parameters in the host's memory, in a distributed program or
    any other: they are arguments of type `dist.host`, which are fetched in front of the op that
    takes them first, and stored when they are updated. States of at most `group_bytes` on a
    device, but of one parameter at least, are copied together, so that their updates can be one
    call. Returns whether there are any.
    """
    entry = entry_function(module)
    order = {op: place for place, op in enumerate(entry.body.block.ops)}
    found = sorted(_states(entry, order), key=lambda s: (s.place, s.argument.index))
    for group in _groups(found, meshes(module), group_bytes):
        _move(entry, group, order)
    entry.update_function_type()
    return bool(found)


def _states(entry: FuncOp, order: dict[Operation, int]) -> Iterator[_State]:
    roles, owned = argument_roles(entry), parameters_of_states(entry)
    values = return_op(entry).operands
    for result, index in updated_arguments(entry).items():
        argument, new = entry.args[index], values[result]
        if roles[index] != "state" or index not in owned:
            continue
        if not isinstance(new, OpResult) or not argument.uses:
            continue
        if is_on_host(argument.type):
            continue
        user = min((use.operation for use in argument.uses), key=order.__getitem__)
        yield _State(argument, result, user, order[user])


def _groups(
    states: Sequence[_State], mesh_of: dict[str, Mesh], most: int
) -> Iterator[list[_State]]:
    """
    Divides states, in the order of their use, into groups of so many bytes on a device; what
    one op takes stays together.
    """
    group, size = list[_State](), 0.0
    for place in dict.fromkeys(state.place for state in states):
        own = [state for state in states if state.place == place]
        more = sum(_local_bytes(state.argument, mesh_of) for state in own)
        if group and size + more > most:
            yield group
            group, size = [], 0.0
        group += own
        size += more
    if group:
        yield group


def _local_bytes(value: SSAValue, mesh_of: dict[str, Mesh]) -> float:
    type_ = local_type(value.type, mesh_of)
    assert isinstance(type_, TensorType)
    return prod(type_.get_shape()) * bytes_per_element(type_.element_type)


def _move(entry: FuncOp, group: Sequence[_State], order: dict[Operation, int]) -> None:
    """Fetches the states of a group before the first is used, and stores them behind the last."""
    end = return_op(entry)
    owners = [end.operands[state.result].owner for state in group]
    last = max((o for o in owners if isinstance(o, Operation)), key=order.__getitem__)
    # Those of one kind are neighbours, as a call for many parameters takes them.
    for state in sorted(group, key=lambda s: list(s.user.operands).index(s.argument)):
        type_, uses = state.argument.type, list(state.argument.uses)
        assert isinstance(type_, TensorType)
        there = Rewriter.replace_value_with_new_type(state.argument, on_host(type_))
        fetch = FetchOp(there, y=type_)
        fetch.y.name_hint = there.name_hint
        for use in uses:
            use.operation.operands[use.index] = fetch.y
        _insert(fetch, InsertPoint.before(group[0].user), state.user)
    values = {state: end.operands[state.result] for state in group}
    for state in sorted(group, key=lambda s: _index(values[s]), reverse=True):
        value = values[state]
        assert isinstance(value.type, TensorType)
        store = OffloadOp(value, y=on_host(value.type))
        store.y.name_hint = value.name_hint
        end.operands[state.result] = store.y
        _insert(store, InsertPoint.after(last), state.user)


def _index(value: SSAValue) -> int:
    """Returns which of its op's results or of its function's arguments a value is."""
    assert isinstance(value, OpResult | BlockArgument)
    return value.index


def _insert(op: Operation, place: InsertPoint, like: Operation) -> None:
    """Inserts a copy that is part of the same module of the model as another op."""
    if SCOPE in like.attributes:
        op.attributes[SCOPE] = like.attributes[SCOPE]
    Rewriter.insert_op(op, place)
