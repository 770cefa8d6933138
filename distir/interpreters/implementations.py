"""
The classes that implement ops of other dialects for the reference interpreter.

This registry is separate from the interpreter, so that a module can register its ops
without importing the interpreter. Such modules also define the costs of ops, which are
needed where programs are only simulated.
"""

from __future__ import annotations

from typing import TypeVar

from xdsl.interpreter import InterpreterFunctions

registered_implementations: list[type[InterpreterFunctions]] = []
"""All registered classes, in the order of their registration."""

_Functions = TypeVar("_Functions", bound=type[InterpreterFunctions])


def register_reference_implementations(functions_class: _Functions) -> _Functions:
    """
    Registers a class that implements the ops of a further dialect on arrays. Use it as
    a class decorator.
    """
    if functions_class not in registered_implementations:
        registered_implementations.append(functions_class)
    return functions_class
