"""
Arguments and results of a function: attributes, roles and names. Also the links from a
result to the argument that the result updates or is a gradient of.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from distir.dialects.dist_attributes import (
    GRADIENT_OF,
    NAME,
    OF,
    ROLE,
    ROLES,
    UPDATES,
    text_attribute,
)
from distir.errors import DistIRError, did_you_mean
from distir.program.naming import unique_names

LOSS = "loss"
"""The role of the result that a training step minimises."""


GRADIENT = "gradient"
"""The role of a result that is the gradient of an argument."""


CACHE = "cache"
"""The role of an argument that keeps what inference needs of the tokens so far."""


BATCH_ROLES = ("input", "label")
"""The roles of the arguments that make up a batch."""


def argument_attributes(function: FuncOp) -> list[dict[str, Attribute]]:
    """Returns copies of the attribute dictionaries of a function's arguments."""
    count = len(function.function_type.inputs)
    if function.arg_attrs is None:
        return [{} for _ in range(count)]
    return [_copy(d) for d in function.arg_attrs.data]


def result_attributes(function: FuncOp) -> list[dict[str, Attribute]]:
    """Returns copies of the attribute dictionaries of a function's results."""
    count = len(function.function_type.outputs)
    if function.res_attrs is None:
        return [{} for _ in range(count)]
    return [_copy(d) for d in function.res_attrs.data]


def _copy(attributes: DictionaryAttr) -> dict[str, Attribute]:
    # Copying the items is fast: these are those of a plain dictionary.
    return dict(attributes.data.items())


def set_argument_attributes(
    function: FuncOp, attributes: Sequence[dict[str, Attribute]]
) -> None:
    """Replaces the attribute dictionaries of a function's arguments."""
    function.arg_attrs = _dictionaries(attributes, function.arg_attrs)


def set_result_attributes(
    function: FuncOp, attributes: Sequence[dict[str, Attribute]]
) -> None:
    """Replaces the attribute dictionaries of a function's results."""
    function.res_attrs = _dictionaries(attributes, function.res_attrs)


def _dictionaries(
    attributes: Sequence[dict[str, Attribute]], before: ArrayAttr[DictionaryAttr] | None
) -> ArrayAttr[DictionaryAttr] | None:
    """
    Returns `attributes` as one attribute, or None if all dictionaries are empty. A
    dictionary equal to the one at the same position in `before` is taken from there,
    because making thousands of dictionaries is slow.
    """
    if not any(attributes):
        return None
    if before is None or len(before.data) != len(attributes):
        return ArrayAttr([DictionaryAttr(own) for own in attributes])
    return ArrayAttr(
        [
            old if [*old.data.items()] == [*own.items()] else DictionaryAttr(own)
            for old, own in zip(before.data, attributes, strict=True)
        ]
    )


def _argument_texts(function: FuncOp, name: str) -> Sequence[str | None]:
    """
    Returns the string attribute `name` of each argument. The entry of an argument
    without this attribute is None.
    """
    if function.arg_attrs is None:
        return [None] * len(function.function_type.inputs)
    return _texts(_Same(function.arg_attrs), name)


class _Same(NamedTuple):
    """
    A wrapper that compares and hashes an array of attribute dictionaries by identity.
    Comparing thousands of attributes by value would be slow.
    """

    of: ArrayAttr[DictionaryAttr]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


@lru_cache(maxsize=32)
def _texts(attributes: _Same, name: str) -> tuple[str | None, ...]:
    """
    Returns the string attribute `name` of each dictionary. The entry of a dictionary
    without this attribute is None. The result is cached.
    """
    # An absent name is looked for first, as `get` is slow if it finds nothing.
    return tuple(
        [
            text_attribute(d.data, name) if name in d.data else None
            for d in attributes.of.data
        ]
    )


def argument_roles(function: FuncOp) -> list[str]:
    """
    Returns the role of each argument, which is `input` for an argument without a role
    attribute. Raises DistIRError for an unknown role: an argument with a misspelt role
    would count as an input and would not be trained.
    """
    given = _argument_texts(function, ROLE)
    for unknown in sorted({role for role in {*given} if role} - {*ROLES}):
        raise DistIRError(
            f"@{function.sym_name.data}: an argument has the role {unknown!r} ({ROLE}); "
            f"{did_you_mean(unknown, ROLES)}the roles are {', '.join(ROLES)}"
        )
    return [role or "input" for role in given]


def result_roles(function: FuncOp) -> list[str]:
    """
    Returns the role of each result: `LOSS`, `GRADIENT`, or `output` for a result
    without a role attribute.
    """
    return [ROLE.of(r) or "output" for r in result_attributes(function)]


def argument_names(function: FuncOp) -> list[str]:
    """
    Returns the source name of each argument. An argument without a source name gets its
    SSA name, or `arg<i>`.
    """
    given = _argument_texts(function, NAME)
    return [
        name or arg.name_hint or f"arg{arg.index}"
        for arg, name in zip(function.body.block.args, given, strict=True)
    ]


def result_names(function: FuncOp) -> list[str]:
    """
    Returns the source name of each result, and `output<i>` for a result without a
    source name. If several results have the same name, a number is added to all but the
    first.
    """
    return unique_names(
        NAME.of(attributes) or f"output{i}"
        for i, attributes in enumerate(result_attributes(function))
    )


def updated_arguments(function: FuncOp) -> dict[int, int]:
    """
    Maps the index of each result that replaces an argument in the next step to the
    index of this argument. All other results are left out. Raises DistIRError if a
    result names an argument that does not exist.
    """
    return _named_arguments(function, function.res_attrs, UPDATES, "result {} updates")


def parameters_of_states(function: FuncOp) -> dict[int, int]:
    """
    Maps the argument index of each optimizer state to the argument index of its
    parameter. Other arguments are left out. Raises DistIRError if a state names an
    argument that does not exist.
    """
    return _named_arguments(
        function, function.arg_attrs, OF, "argument {} is a state of"
    )


def parameters_of_gradients(function: FuncOp) -> dict[int, int]:
    """
    Maps the index of each result that is a gradient to the index of its parameter.
    Results that are not gradients are left out. Raises DistIRError if a result names an
    argument that does not exist.
    """
    return _named_arguments(
        function, function.res_attrs, OF, "result {} is the gradient of"
    )


def gradients_of_results(function: FuncOp) -> dict[int, int]:
    """
    Maps the index of each result whose gradient is an argument to the index of this
    argument. All other results are left out.
    """
    wanted = _argument_texts(function, GRADIENT_OF)
    if not any(wanted):
        return {}
    places = {name: i for i, name in enumerate(result_names(function))}
    return {places[name]: i for i, name in enumerate(wanted) if name in places}


def linked_arguments(function: FuncOp) -> dict[int, int]:
    """
    Maps the index of a result to the index of the argument whose layout the result must
    have. The result replaces the argument in the next step or is its gradient, or the
    argument is the gradient of the result.
    """
    return {
        **gradients_of_results(function),
        **parameters_of_gradients(function),
        **updated_arguments(function),
    }


def is_training_step(function: FuncOp) -> bool:
    """
    Whether a function returns updates or gradients of some of its arguments. A step of
    inference, which updates caches only, is not a training step.
    """
    linked = linked_arguments(function).values()
    if not linked:
        return False
    roles = argument_roles(function)
    return any(roles[argument] != CACHE for argument in linked)


def check_links(function: FuncOp) -> None:
    """
    Raises DistIRError if an attribute of an argument or result names an argument or
    result that does not exist.
    """
    updated_arguments(function)
    parameters_of_states(function)
    parameters_of_gradients(function)
    names = result_names(function)
    for i, name in enumerate(_argument_texts(function, GRADIENT_OF)):
        if name is not None and name not in names:
            raise DistIRError(
                f"@{function.sym_name.data}: argument {i} is the gradient of a result "
                f'{name!r}, which is not there; give that result dist.name = "{name}"'
            )


def _named_arguments(
    function: FuncOp, owners: ArrayAttr[DictionaryAttr] | None, link: str, what: str
) -> dict[int, int]:
    """
    Returns, for each dictionary in `owners` with the attribute `link`, its index and
    the index of the argument that the attribute names. Raises DistIRError if there is
    no such argument, or more than one. `what` describes the owner in the message.
    """
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
    Returns the indices of the results of the forward pass: all results but gradients
    and updates. New content of caches is a result of the forward pass.
    """
    updates = updated_arguments(function)
    roles, of_arguments = result_roles(function), argument_roles(function)
    return [
        i
        for i, role in enumerate(roles)
        if role != GRADIENT and (i not in updates or of_arguments[updates[i]] == CACHE)
    ]
