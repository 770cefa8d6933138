"""
Keeps the states of an optimizer in the host's memory. This is ZeRO-Offload (Ren et al.
2021) without the update on the host: a device fetches the states, updates the
parameters to which they belong, and stores the states again.
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
The largest size in bytes of a group of states that a device fetches together. It is
large enough for links and fused updates to be fast, and small compared with a device's
memory.
"""


class _State(NamedTuple):
    """
    An optimizer state that is an argument of the program. `result` is the index of the
    program's result that updates the state. `user` is the first op that uses the state,
    and `place` is the position of this op.
    """

    argument: BlockArgument
    result: int
    user: Operation
    place: int


def offload_states(module: ModuleOp, group_bytes: int = GROUP_BYTES) -> bool:
    """
    Moves the optimizer states of parameters to the host's memory, in place. The states
    become arguments of type `dist.host`. A device fetches a state right before the
    first op that uses it, and stores it after its update. The states of consecutive
    parameters are copied as a group of up to `group_bytes` bytes on a device, so that
    one call can update them. A group has the states of at least one parameter. Returns
    whether the program has any optimizer states.
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
    Divides states, in the order of their use, into groups of at most `most` bytes on a
    device. States that are first used by the same op stay together, even if the group
    then exceeds `most`.
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
    """
    Adds ops that fetch the states of a group before their first use, and ops that store
    the states after their last update.
    """
    end = return_op(entry)
    owners = [end.operands[state.result].owner for state in group]
    last = max((o for o in owners if isinstance(o, Operation)), key=order.__getitem__)
    # States of one kind are neighbours: one call for many parameters takes them so.
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
    """
    Returns the index of a value among the results of its op, or among the arguments of
    its function.
    """
    assert isinstance(value, OpResult | BlockArgument)
    return value.index


def _insert(op: Operation, place: InsertPoint, like: Operation) -> None:
    """
    Inserts `op`, a copy to or from the host, at `place`, in the module scope of the op
    `like`.
    """
    if SCOPE in like.attributes:
        op.attributes[SCOPE] = like.attributes[SCOPE]
    Rewriter.insert_op(op, place)
