"""
Gathers parameters once for all micro-batches of a step. The functions of a pipeline
gather the parameters that they use in each call. Here, the first call that uses a
parameter gathers it and also returns the whole parameter. All later calls take this
whole parameter as an argument. If the first call needs a value that another stage
sends, the parameter is gathered in front of the call instead, so that it arrives
while the devices of the call wait for that stage.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.dist import SendOp
from distir.dialects.dist_attributes import SCOPE
from distir.program import (
    entry_function,
    functions,
    made_with,
    return_op,
    unique_name,
)
from distir.program.functions import erase_unreachable
from distir.transforms.overlap.across_calls import copied_before, hoist_gathers
from distir.transforms.overlap.kinds import (
    chain_from_argument,
    erase_kinds,
    write_kinds,
)

_Key = tuple[SSAValue, Hashable]
"""A value of the entry function, and the form of the ops that gather it."""


@dataclass
class _Call:
    """
    A call of the entry function. `makes` and `takes` have the indices of arguments that
    the called function gathers: those that this call gathers for later calls, and those
    that it takes as an earlier call has gathered them. Each index has its key.
    """

    op: CallOp
    makes: dict[int, _Key] = field(default_factory=dict[int, _Key])
    takes: dict[int, _Key] = field(default_factory=dict[int, _Key])


def gather_once(module: ModuleOp, axes: Collection[str]) -> bool:
    """
    Gathers each parameter that is stored split over mesh axes in `axes` once in the
    program, in the first call that uses it, instead of once in every call. The program
    must be distributed and have no reshards left. Whole parameters then stay in memory
    until their last use. Returns whether the program changed.
    """
    write_kinds(module)
    entry = entry_function(module)
    called = [
        op.callee.string_value()
        for op in entry.body.block.ops
        if isinstance(op, CallOp)
    ]
    hoist_gathers(module, axes, called)
    calls = _calls(module, axes)
    whole: dict[_Key, SSAValue] = {}
    variants: dict[Hashable, FuncOp] = {}
    for call in calls:
        if any(isinstance(value.owner, SendOp) for value in call.op.operands):
            _gather_in_front(module, call, whole)
        if call.makes or call.takes:
            _replace(module, call, whole, variants)
    erase_unreachable(module)
    erase_kinds(module)
    return bool(whole)


def _calls(module: ModuleOp, axes: Collection[str]) -> list[_Call]:
    """
    Returns the calls of the entry function, in order, with the parameters that they
    share. A parameter that only one call gathers is not shared.
    """
    known = functions(module)
    found: list[tuple[_Call, dict[int, _Key]]] = []
    users: dict[_Key, int] = {}
    for op in entry_function(module).body.block.ops:
        if not isinstance(op, CallOp):
            continue
        keys: dict[int, _Key] = {}
        callee = known[op.callee.string_value()]
        for i, chain in _chains(callee, axes).items():
            if _is_stored(op.operands[i]):
                keys[i] = key = op.operands[i], _form(chain)
                users[key] = users.get(key, 0) + 1
        found.append((_Call(op), keys))
    gathered: set[_Key] = set()
    for call, keys in found:
        for i, key in keys.items():
            if users[key] == 1:
                continue
            (call.takes if key in gathered else call.makes)[i] = key
        gathered.update(key for key in keys.values() if users[key] > 1)
    return [call for call, _ in found]


def _chains(
    function: FuncOp, axes: Collection[str] | None = None
) -> dict[int, list[Operation]]:
    """
    Returns the ops that lead from an argument of `function` to its gather over mesh
    axes in `axes` (by default over any axes), by the index of the argument, for each
    argument that has no other use.
    """
    found: dict[int, list[Operation]] = {}
    for op in function.body.block.ops:
        if not isinstance(op, AllGatherOp):
            continue
        if axes is not None and not all(axis.data in axes for axis in op.axes):
            continue
        chain = chain_from_argument(op)
        if chain and len(list(chain[0].operands[0].uses)) == 1:
            argument = chain[0].operands[0]
            assert isinstance(argument, BlockArgument)
            found[argument.index] = chain
    return found


def _is_stored(value: SSAValue) -> bool:
    """
    Whether a value of the entry function is one of its arguments, possibly as another
    stage has sent it.
    """
    while isinstance(value.owner, SendOp):
        value = value.owner.operands[0]
    return isinstance(value, BlockArgument)


def _form(chain: Sequence[Operation]) -> Hashable:
    """
    Returns what two chains of ops have in common if they compute the same value of the
    same operand.
    """
    return tuple(
        (
            op.name,
            tuple(sorted(op.properties.items())),
            tuple((k, v) for k, v in sorted(op.attributes.items()) if k != SCOPE),
            op.results[0].type,
        )
        for op in chain
    )


def _gather_in_front(
    module: ModuleOp, call: _Call, whole: dict[_Key, SSAValue]
) -> None:
    """
    Gathers in front of a call what the call would gather for later calls. The call then
    takes these whole parameters, which are added to `whole`, like the later calls.
    """
    chains = _chains(functions(module)[call.op.callee.string_value()])
    for i, key in call.makes.items():
        whole[key] = copied_before(call.op, chains[i], call.op.operands[i])
    call.takes |= call.makes
    call.makes = {}


def _replace(
    module: ModuleOp,
    call: _Call,
    whole: dict[_Key, SSAValue],
    variants: dict[Hashable, FuncOp],
) -> None:
    """
    Replaces a call by one of a function that gathers only what no earlier call has
    gathered. `whole` has the whole parameters that are available, and gets those that
    this call returns. `variants` has the functions that were made.
    """
    name = call.op.callee.string_value()
    kind = name, tuple(call.makes), tuple(call.takes)
    function = variants.get(kind)
    if function is None:
        function = variants[kind] = _variant(module, name, call)
    operands = list(call.op.operands)
    for i, key in call.takes.items():
        operands[i] = whole[key]
    new = made_with(call.op, operands, function.function_type.outputs.data)
    new.properties["callee"] = SymbolRefAttr(function.sym_name)
    Rewriter.insert_op(new, InsertPoint.before(call.op))
    own = len(call.op.results)
    for old, result in zip(call.op.results, new.results[:own], strict=True):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    for (i, key), result in zip(call.makes.items(), new.results[own:], strict=True):
        result.name_hint = operands[i].name_hint
        whole[key] = result
    Rewriter.erase_op(call.op)


def _variant(module: ModuleOp, name: str, call: _Call) -> FuncOp:
    """
    Adds to the module a copy of the function `name` that returns the parameters which
    `call` gathers, and takes whole parameters where an earlier call has gathered them.
    """
    original = functions(module)[name]
    function = original.clone()
    suffix = "_and_gather" if call.makes else "_of_gathered"
    function.properties["sym_name"] = StringAttr(unique_name(module, name + suffix))
    Rewriter.insert_op(function, InsertPoint.after(original))
    chains = _chains(function)
    end = return_op(function)
    gathered = [chains[i][-1].results[0] for i in call.makes]
    end.operands = [*end.operands, *gathered]
    for i in call.takes:
        chain = chains[i]
        result = chain[-1].results[0]
        argument = Rewriter.replace_value_with_new_type(
            function.body.block.args[i], result.type
        )
        result.replace_all_uses_with(argument)
        for op in reversed(chain):
            Rewriter.erase_op(op)
    function.update_function_type()
    return function
