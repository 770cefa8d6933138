"""
Derives the roles of a function's arguments and results, as attributes of a program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, OpResult, SSAValue

from distir.dialects.dist_attributes import NAME, OF, ROLE, UPDATES
from distir.program import (
    LOSS,
    entry_function,
    name_hint,
    return_op,
    set_argument_attributes,
    set_result_attributes,
)

Attributes = dict[str, Attribute]

Kind = tuple[tuple[int, ...], str]
"""The shape of an array, and the name of its element type."""


@dataclass(frozen=True)
class Leaves:
    """
    The arrays that a function takes or returns, in order: their `names`, and their
    shapes and element types (`kinds`).
    """

    names: Sequence[str]
    kinds: Sequence[Kind]


def describe(
    module: ModuleOp,
    arguments: Leaves,
    results: Leaves,
    updated: Mapping[int, int],
    inputs: Collection[int],
) -> None:
    """
    Sets the roles and names of arguments and results as attributes of the entry
    function. `updated` maps the index of each result that replaces an argument to the
    index of this argument. `inputs` are the indices of the arguments that hold the
    batch. Arguments of the function that follow those in `arguments` keep their
    attributes.
    """
    function = entry_function(module)
    roles = argument_roles(function, arguments, updated, inputs)
    own = argument_attributes(arguments, roles)
    known = function.arg_attrs
    others = [] if known is None else [dict(d.data) for d in known.data[len(own) :]]
    set_argument_attributes(function, [*own, *others])
    set_result_attributes(function, result_attributes(results, updated, arguments))
    named = function.body.block.args[: len(own)]
    for value, name in zip(named, arguments.names, strict=True):
        value.name_hint = name_hint(name)


def _is_float(kind: str) -> bool:
    return "float" in kind or kind in ("bf16", "f16", "f32", "f64")


def argument_roles(
    function: FuncOp,
    arguments: Leaves,
    updated: Mapping[int, int],
    inputs: Collection[int],
) -> list[str]:
    """
    Returns the role of each argument.

    An argument that a result replaces is a parameter or a state. It is a parameter if
    it is a float and the loss, or any other result that replaces no argument, depends
    on it. An argument of the batch (`inputs`) is an input. However, it is a constant,
    such as the key of a random generator, if its dimension 0 differs from the batch
    size of most inputs. Any other argument is a parameter if it is a float, and
    otherwise a constant.
    """
    replaced = set(updated.values())
    used = _used_by_others(function, set(updated))
    sizes = Counter(arguments.kinds[i][0][0] for i in inputs if arguments.kinds[i][0])
    batch = sizes.most_common(1)[0][0] if sizes else None
    roles: list[str] = []
    for index, (shape, kind) in enumerate(arguments.kinds):
        if index in replaced:
            is_parameter = _is_float(kind) and index in used
            roles.append("parameter" if is_parameter else "state")
        elif index in inputs:
            fits = not shape or shape[0] == batch
            roles.append("input" if fits else "constant")
        else:
            roles.append("parameter" if _is_float(kind) else "constant")
    return roles


def _used_by_others(function: FuncOp, updates: set[int]) -> set[int]:
    """
    Returns the indices of the arguments on which a result outside of `updates` depends.
    Returns all arguments if every result is in `updates`.
    """
    block = function.body.block
    others = [
        value
        for index, value in enumerate(return_op(function).operands)
        if index not in updates
    ]
    if not others:
        return set(range(len(block.args)))
    found: set[int] = set()
    seen: set[SSAValue] = set()
    waiting = list(others)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, BlockArgument):
            found.add(value.index)
        elif isinstance(value, OpResult):
            waiting.extend(value.owner.operands)
    return found


def argument_attributes(arguments: Leaves, roles: Sequence[str]) -> list[Attributes]:
    """
    Returns the attributes of each argument: its role and name. A state also gets the
    name of its parameter, if there is one: the parameter of the same shape whose dotted
    name has the longest common end with the name of the state.
    """
    parameters = [i for i, role in enumerate(roles) if role == "parameter"]
    by_kind: dict[tuple[int, ...], list[int]] = {}
    for index in parameters:
        by_kind.setdefault(arguments.kinds[index][0], []).append(index)
    found: list[Attributes] = []
    for index, (name, role) in enumerate(zip(arguments.names, roles, strict=True)):
        own: Attributes = {ROLE: ROLE.attr(role), NAME: NAME.attr(name)}
        if role == "state":
            alike = by_kind.get(arguments.kinds[index][0], [])
            best = max(
                alike,
                key=lambda i: common_end(name, arguments.names[i]),
                default=None,
            )
            if best is not None and common_end(name, arguments.names[best]):
                own[OF] = OF.attr(arguments.names[best])
        found.append(own)
    return found


def common_end(left: str, right: str) -> int:
    """Returns the number of equal parts at the ends of two dotted names."""
    parts = zip(reversed(left.split(".")), reversed(right.split(".")), strict=False)
    count = 0
    for a, b in parts:
        if a != b:
            break
        count += 1
    return count


def result_attributes(
    results: Leaves, updated: Mapping[int, int], arguments: Leaves
) -> list[Attributes]:
    """
    Returns the attributes of each result: its name, and the name of the argument that
    the result replaces, if any. In a training step, the first float scalar that
    replaces no argument is the loss.
    """
    found: list[Attributes] = []
    is_loss_known = not updated
    for index, (name, (shape, kind)) in enumerate(
        zip(results.names, results.kinds, strict=True)
    ):
        own: Attributes = {NAME: NAME.attr(name)}
        if index in updated:
            own[UPDATES] = UPDATES.attr(arguments.names[updated[index]])
        elif not is_loss_known and not shape and _is_float(kind):
            own[ROLE] = ROLE.attr(LOSS)
            is_loss_known = True
        found.append(own)
    return found
