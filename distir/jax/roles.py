"""Roles of arguments and results of a function of JAX, as attributes of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, OpResult, SSAValue

from distir.dialects.dist_attributes import NAME, OF, ROLE, UPDATES
from distir.jax.pytrees import Leaves
from distir.program import LOSS, return_op

Attributes = dict[str, Attribute]


def _is_float(kind: str) -> bool:
    return "float" in kind


def argument_roles(
    function: FuncOp,
    arguments: Leaves,
    updated: Mapping[int, int],
    inputs: Collection[int],
) -> list[str]:
    """
    Returns the role of each argument.

    Of those that a result replaces, floats from which another result follows, such as
    the loss, are parameters, and the rest states. `inputs` are the arguments of the
    batch. Among them, an array whose dimension 0 is not that of most others is a
    constant, such as the key of a random generator. What is neither is a parameter.
    """
    replaced = set(updated.values())
    used = _used_by_others(function, set(updated))
    sizes = Counter(
        arguments.kinds[i][0][0] for i in inputs if arguments.kinds[i][0]
    )
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
    Returns the arguments from which a result follows that replaces no argument. If all
    replace one, returns all arguments.
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
    Returns the attributes of the arguments: role, name, and of a state the parameter
    that it belongs to, which has its shape and the longest common end of its name.
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
                key=lambda i: _common_end(name, arguments.names[i]),
                default=None,
            )
            if best is not None and _common_end(name, arguments.names[best]):
                own[OF] = OF.attr(arguments.names[best])
        found.append(own)
    return found


def _common_end(left: str, right: str) -> int:
    """Returns how many parts at the end of two dotted names are the same."""
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
    Returns the attributes of the results: names, which argument each replaces, and the
    first other float without dimensions as the loss of a training step.
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
