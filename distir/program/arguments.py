"""
Arguments and results of a function: their attributes, roles and names, and which result
updates which argument or is its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from distir.dialects.dist_attributes import (
    NAME,
    OF,
    ROLE,
    ROLES,
    UPDATES,
    text_attribute,
)
from distir.errors import DistIRError, did_you_mean

LOSS = "loss"
"""The role of the result that a training step minimises."""


GRADIENT = "gradient"
"""The role of a result that is the gradient of an argument."""


BATCH_ROLES = ("input", "label")
"""The roles of arguments that a batch consists of."""


def argument_attributes(function: FuncOp) -> list[dict[str, Attribute]]:
    """Returns the attribute dictionaries of the arguments (copies)."""
    count = len(function.function_type.inputs)
    if function.arg_attrs is None:
        return [{} for _ in range(count)]
    return [dict(d.data) for d in function.arg_attrs.data]


def result_attributes(function: FuncOp) -> list[dict[str, Attribute]]:
    """Returns the attribute dictionaries of the results (copies)."""
    count = len(function.function_type.outputs)
    if function.res_attrs is None:
        return [{} for _ in range(count)]
    return [dict(d.data) for d in function.res_attrs.data]


def set_argument_attributes(
    function: FuncOp, attributes: Sequence[dict[str, Attribute]]
) -> None:
    """Replaces the attribute dictionaries of the arguments."""
    function.arg_attrs = _dictionaries(attributes)


def set_result_attributes(
    function: FuncOp, attributes: Sequence[dict[str, Attribute]]
) -> None:
    """Replaces the attribute dictionaries of the results."""
    function.res_attrs = _dictionaries(attributes)


def _dictionaries(
    attributes: Sequence[dict[str, Attribute]],
) -> ArrayAttr[DictionaryAttr] | None:
    if not any(attributes):
        return None
    return ArrayAttr([DictionaryAttr(own) for own in attributes])


def _argument_texts(function: FuncOp, name: str) -> Sequence[str | None]:
    """Returns the string that each argument has under a name."""
    if function.arg_attrs is None:
        return [None] * len(function.function_type.inputs)
    return _texts(_Same(function.arg_attrs), name)


class _Same(NamedTuple):
    """
    Attributes compared by their identity: there are thousands, too many to compare or hash.
    """

    of: ArrayAttr[DictionaryAttr]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


@lru_cache(maxsize=32)
def _texts(attributes: _Same, name: str) -> tuple[str | None, ...]:
    """
    Returns the string that each dictionary has under a name; cached, as it is asked
    repeatedly.
    """
    return tuple([text_attribute(d.data, name) for d in attributes.of.data])


def argument_roles(function: FuncOp) -> list[str]:
    """
    Returns the role of each argument; `input` if it has none. Raises DistIRError for a role
    that does not exist: a misspelt one would pass for an input, and not be trained.
    """
    given = _argument_texts(function, ROLE)
    for unknown in sorted({role for role in given if role} - {*ROLES}):
        raise DistIRError(
            f"@{function.sym_name.data}: an argument has the role {unknown!r} ({ROLE}); "
            f"{did_you_mean(unknown, ROLES)}the roles are {', '.join(ROLES)}"
        )
    return [role or "input" for role in given]


def result_roles(function: FuncOp) -> list[str]:
    """Returns the role of each result, `LOSS` or `GRADIENT`; `output` if it has none."""
    return [ROLE.of(r) or "output" for r in result_attributes(function)]


def argument_names(function: FuncOp) -> list[str]:
    """Returns the source name of each argument; its SSA name or position if it has none."""
    given = _argument_texts(function, NAME)
    return [
        name or arg.name_hint or f"arg{arg.index}"
        for arg, name in zip(function.body.block.args, given, strict=True)
    ]


def result_names(function: FuncOp) -> list[str]:
    """
    Returns the source name of each result, `output<i>` if it has none; names that several
    results have get a number, so that all differ.
    """
    names: dict[str, None] = {}
    for i, attributes in enumerate(result_attributes(function)):
        name = NAME.of(attributes) or f"output{i}"
        unique, count = name, 1
        while unique in names:
            count += 1
            unique = f"{name}_{count}"
        names[unique] = None
    return list(names)


def updated_arguments(function: FuncOp) -> dict[int, int]:
    """
    Returns the results that replace an argument in the next step: result index to argument
    index. Raises DistIRError for the name of an argument that does not exist.
    """
    return _named_arguments(function, function.res_attrs, UPDATES, "result {} updates")


def parameters_of_states(function: FuncOp) -> dict[int, int]:
    """
    Returns the arguments that belong to another one, as an optimizer's states do to a
    parameter: index to index. Raises DistIRError for the name of an argument that does not
    exist.
    """
    return _named_arguments(
        function, function.arg_attrs, OF, "argument {} is a state of"
    )


def parameters_of_gradients(function: FuncOp) -> dict[int, int]:
    """
    Returns the results that are gradients of an argument: result index to argument index.
    Raises DistIRError for the name of an argument that does not exist.
    """
    return _named_arguments(
        function, function.res_attrs, OF, "result {} is the gradient of"
    )


def linked_arguments(function: FuncOp) -> dict[int, int]:
    """
    Returns the results that must have the layout of an argument, because they replace it in
    the next step or are its gradient: result index to argument index.
    """
    return {**parameters_of_gradients(function), **updated_arguments(function)}


def is_training_step(function: FuncOp) -> bool:
    """Whether a program returns updates of its arguments, or the gradients of some."""
    return bool(linked_arguments(function))


def check_links(function: FuncOp) -> None:
    """Raises DistIRError for an attribute that names an argument which does not exist."""
    updated_arguments(function)
    parameters_of_states(function)
    parameters_of_gradients(function)


def _named_arguments(
    function: FuncOp, owners: ArrayAttr[DictionaryAttr] | None, link: str, what: str
) -> dict[int, int]:
    """Returns which argument each of the owners names with the attribute `link`, if any."""
    links = () if owners is None else _texts(_Same(owners), link)
    wanted = {i: name for i, name in enumerate(links) if name is not None}
    if not wanted:
        return {}
    names = _argument_texts(function, NAME)
    places = {n: i for i, n in enumerate(names) if n}
    for i, name in wanted.items():
        if name not in places:
            raise DistIRError(
                f"@{function.sym_name.data}: {what.format(i)} an argument {name!r}, which "
                f'is not there; give that argument dist.name = "{name}"'
            )
    if len(places) < len(names):  # some have no name, or one that another has
        for i, name in wanted.items():
            if names.count(name) > 1:
                raise DistIRError(
                    f"@{function.sym_name.data}: {what.format(i)} an argument {name!r}, "
                    f"but several have this dist.name; give each its own"
                )
    return {i: places[name] for i, name in wanted.items()}


def forward_results(function: FuncOp) -> list[int]:
    """
    Returns the indices of the results of the forward pass: all but updates and gradients.
    """
    updates = updated_arguments(function)
    roles = result_roles(function)
    return [i for i in range(len(roles)) if i not in updates and roles[i] != GRADIENT]
