"""
Counts the different values that a function gets as an argument in a step. The functions
of a pipeline run once for each micro-batch, mostly with the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from distir.interpreters.simulator.library_kernels import cast_parameter


class DistinctArguments:
    """
    The values that the functions of a program get as arguments in all calls of a step.
    `functions` maps the names of functions to functions. A function that no other
    function calls runs once.
    """

    def __init__(self, functions: Mapping[str, FuncOp]):
        self._functions = functions
        self._runs: dict[str, int] = {}
        self._values: dict[SSAValue, Mapping[SSAValue, int]] = {}

    @cached_property
    def _calls(self) -> Mapping[str, list[CallOp]]:
        """The calls of each function, by its name."""
        found: dict[str, list[CallOp]] = {}
        for function in self._functions.values():
            for op in function.walk():
                if isinstance(op, CallOp):
                    found.setdefault(op.callee.string_value(), []).append(op)
        return found

    def share_of_runs(self, op: Operation) -> float:
        """
        Returns the fraction of the runs of `op` in which a library does the work of
        `op`. A library casts each parameter to 8-bit floats once a step and keeps the
        result; for all other ops the fraction is 1.
        """
        parameter = cast_parameter(op)
        return 1.0 if parameter is None else self.share(parameter)

    def share(self, argument: BlockArgument) -> float:
        """
        Returns the number of different values that an argument of a function has in a
        step, divided by the number of times that the function runs. The result is 1 if
        the argument has a different value in each run.
        """
        values = self._values_of(argument)
        return sum(values.values()) / self._runs_of(_function_around(argument))

    def _values_of(self, value: SSAValue) -> Mapping[SSAValue, int]:
        """
        Returns the different values that `value` has in a step. An argument of a called
        function is traced to the results of ops, or arguments of the program, that its
        calls pass. Maps each of these to the number of times that it is computed.
        """
        if value not in self._values:
            function = _function_around(value)
            calls = self._calls.get(function.sym_name.data, [])
            if not isinstance(value, BlockArgument) or not calls:
                self._values[value] = {value: self._runs_of(function)}
            else:
                found: dict[SSAValue, int] = {}
                for operand in {call.operands[value.index] for call in calls}:
                    found.update(self._values_of(operand))
                self._values[value] = found
        return self._values[value]

    def _runs_of(self, function: FuncOp) -> int:
        """Returns the number of times that a function runs in a step."""
        name = function.sym_name.data
        if name not in self._runs:
            calls = self._calls.get(name, [])
            runs = sum(self._runs_of(_function_of(call.parent)) for call in calls)
            self._runs[name] = runs or 1
        return self._runs[name]


def _function_around(value: SSAValue) -> FuncOp:
    if isinstance(value, BlockArgument):
        return _function_of(value.block)
    owner = value.owner
    assert isinstance(owner, Operation)
    return _function_of(owner.parent)


def _function_of(block: Block | None) -> FuncOp:
    function = block.parent_op() if block is not None else None
    assert isinstance(function, FuncOp)
    return function
