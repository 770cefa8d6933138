"""
The base class of all passes: accepts numbers in any notation, and names wrong options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, Self, get_args, get_type_hints

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec, ParameterListType, ParameterType

from distir.errors import DistIRError
from distir.program.locations import KnownLocations

Apply = Callable[..., None]

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


class DistIRPass(ModulePass):
    """
    The base of DistIR's passes. The options of a pass are the fields of its dataclass,
    as in xDSL. In addition, an option for a fractional number accepts integers and
    forms such as `memory=16e9`, which xDSL reads as text. The bare name of a boolean
    option stands for true. An unknown option, or a value of the wrong type, raises a
    DistIRError that names the option.

    If the program has locations (`distir.program.locations`), a new op gets the
    location of the op that the pass made it for.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "apply" in cls.__dict__:
            cls.apply = _keeping_locations(cls.apply)

    @classmethod
    def from_spec(cls, spec: ArgSpec) -> Self:
        """
        Returns the pass with the options in `spec`. Raises DistIRError for an unknown
        option, or a value of the wrong type.
        """
        hints = get_type_hints(cls)
        known = {field.name: hints[field.name] for field in fields(cls)}
        options: dict[str, ParameterListType] = {}
        for name, values in spec.normalize_parameter_names().parameters.items():
            if name not in known:
                names = ", ".join(_written(n) for n in known) or "none"
                raise DistIRError(
                    f"{cls.name}: there is no option {_written(name)}; the options are: {names}"
                )
            if float in _parts(known[name]):
                values = tuple(map(_as_number, values))
            if known[name] is bool and not values:
                values = (True,)  # `project{spmd}` is `project{spmd=true}`
            options[name] = values
        try:
            return super().from_spec(ArgSpec(spec.name, options))
        except ValueError as error:
            for name, values in options.items():
                cls._check_option(name, values, known[name])
            raise DistIRError(f"{cls.name}: {error}") from error

    @classmethod
    def _check_option(cls, name: str, values: ParameterListType, hint: Any) -> None:
        """
        Raises DistIRError if `values` have the wrong type for the option `name`. `hint`
        is the type of the option.
        """
        try:
            super().from_spec(ArgSpec(cls.name, {name: values}))
        except ValueError as error:
            parts = _parts(hint)
            kind = next(text for type_, text in _KINDS.items() if type_ in parts)
            if tuple in parts:
                kind = f"a list, separated by commas, each {kind}"
            given = ",".join(map(str, values)) or "nothing"
            raise DistIRError(
                f"{cls.name}: option {_written(name)} takes {kind}, but is given {given}"
            ) from error


def _keeping_locations(apply: Apply) -> Apply:
    """Wraps the method `apply` of a pass so that ops keep their locations."""

    @wraps(apply)
    def run(self: ModulePass, ctx: Context, op: ModuleOp) -> None:
        known = KnownLocations.of(op)
        apply(self, ctx, op)
        if known is not None:
            known.complete(op)

    return run


def _written(name: str) -> str:
    """Returns the spelling of an option in a pipeline of passes, with dashes."""
    return name.replace("_", "-")


def _parts(hint: Any) -> set[Any]:
    """Returns all types that occur in the type hint `hint`, with `tuple` for lists."""
    found = {getattr(hint, "__origin__", hint)}
    for part in get_args(hint):
        found |= _parts(part)
    return found


def _as_number(value: ParameterType) -> ParameterType:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return value
    try:
        return float(value)
    except ValueError:
        return value
