"""
`inline-calls`: replaces every call by the body of its function, the inverse of
`outline-repeats`. The number that a call's scope has where the scopes in the function
have `*` takes its place again.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import SCOPE
from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.passes.outline_repeats import VARYING
from distir.program import describe, functions, return_op, scope_of


def specialise(scope: str, call_scope: str) -> str:
    """
    `h.3.attn` for the scope `h.*.attn` of an op called from the scope `h.3`. The call
    has the innermost scope that holds all ops, so a result is never outside that.
    """
    parts = scope.split(".")
    inside = call_scope.split(".")
    for index, part in enumerate(inside):
        if index < len(parts) and parts[index] == VARYING:
            parts[index] = part
    return ".".join(parts) if parts[: len(inside)] == inside else call_scope


def inline_call(call: CallOp, callee: FuncOp) -> None:
    """Puts a copy of the callee's body in the place of the call."""
    values: dict[SSAValue, SSAValue] = dict(
        zip(callee.body.block.args, call.arguments, strict=True)
    )
    place = InsertPoint.before(call)
    call_scope = scope_of(call)
    end = return_op(callee)
    for op in callee.body.block.ops:
        if op is end:
            continue
        copy = op.clone(values)
        if call_scope:
            copy.attributes[SCOPE] = StringAttr(specialise(scope_of(op), call_scope))
        Rewriter.insert_op(copy, place)
    results = [values.get(value, value) for value in end.arguments]
    for old, new in zip(call.results, results, strict=True):
        if old.name_hint is not None:
            new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    Rewriter.erase_op(call)


class CallInliner:
    """Inlines the calls of functions, callees first."""

    def __init__(self, module: ModuleOp):
        self.functions = functions(module)
        self.done: set[str] = set()
        self.inlined: set[str] = set()
        self.active: list[str] = []

    def inline_all(self, name: str) -> None:
        """Inlines every call in the function of that name. Raises DistIRError."""
        if name in self.done:
            return
        if name in self.active:
            cycle = " -> ".join(f"@{n}" for n in [*self.active, name])
            raise DistIRError(
                f"inline-calls: the functions call each other in a circle ({cycle}); "
                f"a program of DistIR is straight-line code, so break the circle"
            )
        self.active.append(name)
        for call, callee in self._calls(self.functions[name]):
            self.inline_all(callee.sym_name.data)
            inline_call(call, callee)
            self.inlined.add(callee.sym_name.data)
        self.active.pop()
        self.done.add(name)

    def _calls(self, function: FuncOp) -> list[tuple[CallOp, FuncOp]]:
        found: list[tuple[CallOp, FuncOp]] = []
        for op in function.walk():
            if not isinstance(op, CallOp):
                continue
            callee = self.functions.get(op.callee.string_value())
            if callee is None or not callee.is_declaration:
                found.append((op, self._defined(op, callee)))
        return found

    def _defined(self, call: Operation, callee: FuncOp | None) -> FuncOp:
        if callee is not None and len(callee.body.blocks) == 1:
            return callee
        raise DistIRError(
            f"inline-calls: {describe(call)} calls a function that the module does not "
            f"define, or that has branches; define it as straight-line code"
        )


class InlineCallsPass(DistIRPass):
    """Inlines all calls, and removes the private functions that were called."""

    name = "inline-calls"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        inliner = CallInliner(op)
        for name in inliner.functions:
            inliner.inline_all(name)
        for name in inliner.inlined:
            function = inliner.functions[name]
            if function.sym_visibility == StringAttr("private"):
                Rewriter.erase_op(function)
