"""Where in the source model an op of a running program came from."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from distir.interpreters.cost.plan import Step
from distir.program import scope_of


def full_scope(op: Operation, path: Sequence[Step]) -> str:
    """
    The scope of an op given the calls that led to it, outermost first. In a repeated
    function `layers.*.mlp` takes the `0` of the call's `layers.0`.
    """
    full = ""
    for scope in filter(None, (scope_of(o) for o in (*(call.op for call in path), op))):
        known = full.split(".")
        parts = scope.split(".")
        full = ".".join(
            known[i] if part == "*" and i < len(known) else part
            for i, part in enumerate(parts)
        )
    return full


def pattern(scope: str) -> str:
    """A scope with `*` for its numbers: one name for all layers."""
    return ".".join("*" if part.isdigit() else part for part in scope.split("."))


class ScopeCache:
    """`full_scope`, worked out once for each op of each call."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], str] = {}

    def __call__(self, op: Operation, path: Sequence[Step]) -> str:
        key = (op, *path)
        scope = self._known.get(key)
        if scope is None:
            scope = self._known[key] = full_scope(op, path)
        return scope
