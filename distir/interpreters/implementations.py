"""
The classes that implement ops of other dialects for the reference interpreter.

They are registered here and not with the interpreter, because their modules also state
what ops cost, which programs that only simulate need.
"""

from __future__ import annotations

from typing import TypeVar

from xdsl.interpreter import InterpreterFunctions

registered_implementations: list[type[InterpreterFunctions]] = []
"""All registered classes, in the order of their registration."""

_Functions = TypeVar("_Functions", bound=type[InterpreterFunctions])


def register_reference_implementations(functions_class: _Functions) -> _Functions:
    """
    Registers a class that implements another dialect's ops on arrays. Use it as a class
    decorator.
    """
    if functions_class not in registered_implementations:
        registered_implementations.append(functions_class)
    return functions_class
