"""Finds the scope of an op in the source model, for each call that leads to the op."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from distir.interpreters.simulator.engine.compiled import CallStep
from distir.program import scope_of


def full_scope(op: Operation, path: Sequence[CallStep]) -> str:
    """
    Returns the scope of an op, given the calls that led to it, outermost first. For
    example, the scope `layers.*.mlp` in a repeated function becomes `layers.0.mlp` if
    the call has the scope `layers.0`.
    """
    full = ""
    for step in path:
        full = _within(full, scope_of(step.op))
    return _within(full, scope_of(op))


def _within(outer: str, scope: str) -> str:
    """
    Returns the scope of an op or a call with the written scope `scope`, inside a call
    with the scope `outer`. A `*` in `scope` is replaced by the part of `outer` at the
    same depth.
    """
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
    Returns a scope with `*` in place of its numbers (`h.*.mlp` for `h.3.mlp`). The
    result is the same for all layers.
    """
    return ".".join("*" if part.isdigit() else part for part in scope.split("."))


class ScopeCache:
    """
    Computes the scopes of ops as `full_scope` does, and caches them by op and scope of
    the call.
    """

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
