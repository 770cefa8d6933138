"""Finds the scope in the source model of an op in a running program."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from distir.interpreters.simulator.engine.compiled import CallStep
from distir.program import scope_of


def full_scope(op: Operation, path: Sequence[CallStep]) -> str:
    """
    Returns the scope of an op given the calls that led to it, outermost first. In a
    repeated function `layers.*.mlp` takes the `0` of the call's `layers.0`.
    """
    full = ""
    for step in path:
        full = _within(full, scope_of(step.op))
    return _within(full, scope_of(op))


def _within(outer: str, scope: str) -> str:
    """Returns the scope of an op, or of a call, inside a call with scope `outer`."""
    if not scope or not outer:
        return scope or outer
    if "*" not in scope:
        return scope
    known = outer.split(".")
    return ".".join(
        known[i] if part == "*" and i < len(known) else part
        for i, part in enumerate(scope.split("."))
    )


def pattern(scope: str) -> str:
    """
    Returns a scope with `*` for its numbers (`h.*.mlp` for `h.3.mlp`): one name for all
    layers.
    """
    return ".".join("*" if part.isdigit() else part for part in scope.split("."))


class ScopeCache:
    """Computes `full_scope` once for each op in calls of the same scope."""

    def __init__(self) -> None:
        self._of_path: dict[tuple[CallStep, ...], str] = {(): ""}
        self._known: dict[tuple[Operation, str], str] = {}

    def __call__(self, op: Operation, path: Sequence[CallStep]) -> str:
        calls = tuple(path)
        outer = self._of_path.get(calls)
        if outer is None:
            outer = self._of_path[calls] = full_scope(calls[-1].op, calls[:-1])
        scope = self._known.get((op, outer))
        if scope is None:
            scope = self._known[op, outer] = _within(outer, scope_of(op))
        return scope
