"""
Runs functions and calls, for interpreters with any kind of values.

A call in the program is not a nested Python call, so calls may nest arbitrarily deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    impl_callable,
    register_impls,
)
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import InterpretationError

from distir.dialects.registries import name_of
from distir.errors import DistIRError
from distir.program import functions
from distir.program.functions import check_executed


@dataclass
class _Frame:
    """
    A call that is in progress. `function` is the called function, `ops` yields its
    remaining ops, `values` holds the values that are still needed, and `call` is the
    call op, or None for the outermost function.
    """

    function: FuncOp
    ops: Iterator[Operation]
    values: dict[SSAValue, Any]
    call: CallOp | None


@register_impls
class ProgramFunctions(InterpreterFunctions):
    """
    Runs functions and calls of the `func` dialect, for programs without control flow. A
    value is dropped after its last use, so the interpreter holds no more values than
    the program needs.
    """

    def __init__(
        self,
        known: Mapping[str, FuncOp],
        observer: Callable[[SSAValue, Any], None] | None = None,
    ):
        """
        `known` maps names to functions. If `observer` is given, the interpreter calls
        it with each SSA value and the value's content, in every call of the function
        that contains the value.
        """
        self.functions = known
        self._observer = observer
        self._last_uses: dict[FuncOp, dict[Operation, list[SSAValue]]] = {}
        self._checked: set[FuncOp] = set()

    @impl_callable(FuncOp)
    def call_function(
        self, interpreter: Interpreter, op: FuncOp, args: PythonValues
    ) -> PythonValues:
        if op not in self._checked:
            check_executed(interpreter.module, [op])
            self._checked.add(op)
        stack = [self._frame(op, args, None)]
        while True:
            frame = stack[-1]
            step = next(frame.ops, None)
            if step is None:
                raise DistIRError(
                    f"function @{frame.function.sym_name.data} does not end in func.return"
                )
            values = tuple(frame.values[v] for v in step.operands)
            for dead in self._last_uses[frame.function].get(step, ()):
                del frame.values[dead]
            if isinstance(step, CallOp):
                stack.append(self._frame(self._callee(step), values, step))
                continue
            if not isinstance(step, ReturnOp):
                results = self.run_one(interpreter, step, values)
                self._set(frame, step.results, results)
                continue
            stack.pop()
            if not stack:
                return values
            assert frame.call is not None
            self._set(stack[-1], frame.call.results, values)

    @impl(CallOp)
    def run_call(
        self, interpreter: Interpreter, op: CallOp, args: PythonValues
    ) -> PythonValues:
        return self.call_function(interpreter, self._callee(op), args)

    def _callee(self, op: CallOp) -> FuncOp:
        name = op.callee.string_value()
        if name not in self.functions:
            raise DistIRError(f"the program calls @{name}, which it does not define")
        return self.functions[name]

    def _frame(
        self, function: FuncOp, args: PythonValues, call: CallOp | None
    ) -> _Frame:
        if not function.body.blocks:
            raise DistIRError(f"function @{function.sym_name.data} has no body")
        block = function.body.block
        if function not in self._last_uses:
            self._last_uses[function] = _last_uses(function)
        frame = _Frame(function, iter(block.ops), {}, call)
        self._set(frame, block.args, args)
        return frame

    @staticmethod
    def run_one(
        interpreter: Interpreter, op: Operation, values: PythonValues
    ) -> PythonValues:
        try:
            return interpreter.run_op(op, values)
        except InterpretationError as error:
            raise DistIRError(
                f"no interpretation of {name_of(op)} is registered; install the package that "
                f"computes the op, or register one: "
                f"distir.extension.register_op({name_of(op)!r}, OpSupport(reference=...))"
            ) from error

    def _set(
        self, frame: _Frame, values: Sequence[SSAValue], contents: PythonValues
    ) -> None:
        for value, content in zip(values, contents, strict=True):
            if self._observer is not None:
                self._observer(value, content)
            if value.first_use is not None:
                frame.values[value] = content


def _last_uses(function: FuncOp) -> dict[Operation, list[SSAValue]]:
    """
    Maps each op of a function to the operands of the op that no later op uses. An op
    without such operands is left out.
    """
    seen: set[SSAValue] = set()
    found: dict[Operation, list[SSAValue]] = {}
    for op in reversed(list(function.body.block.ops)):
        last = [v for v in dict.fromkeys(op.operands) if v not in seen]
        seen.update(last)
        if last:
            found[op] = last
    return found


def call_by_name(
    interpreter: Interpreter, name: str, arguments: Sequence[Any]
) -> PythonValues:
    """
    Runs the function `name` of the interpreter's module and returns its results. Raises
    DistIRError if the module has no such function, or if the function cannot run.
    """
    known = functions(interpreter.module)
    if name not in known:
        raise DistIRError(f"the program has no function @{name}")
    return interpreter.call_op(known[name], tuple(arguments))
