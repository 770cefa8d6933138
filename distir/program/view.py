"""
A view of a program: its entry function, with facts about its arguments and results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, SSAValue

from distir.dialects.dist import Layout, layout_of
from distir.dialects.tensors import shape_of
from distir.program.arguments import (
    argument_names,
    argument_roles,
    is_training_step,
    linked_arguments,
    parameters_of_states,
    result_names,
    result_roles,
    updated_arguments,
)
from distir.program.functions import entry_function, reachable_functions, return_op


@dataclass(frozen=True)
class Argument:
    """An argument of a function, with its name and role in the model."""

    value: BlockArgument
    name: str
    role: str
    attributes: Mapping[str, Attribute]

    @property
    def index(self) -> int:
        """The position of the argument among all arguments of the function."""
        return self.value.index

    @property
    def type(self) -> Attribute:
        """The type of the argument."""
        return self.value.type

    @property
    def layout(self) -> Layout | None:
        """
        The layout of the argument in a distributed program; None in a sequential
        program.
        """
        return layout_of(self.value)


@dataclass(frozen=True)
class ProgramResult:
    """A value that a function returns, with its name and role in the model."""

    index: int
    value: SSAValue
    name: str
    role: str
    attributes: Mapping[str, Attribute]

    @property
    def type(self) -> Attribute:
        """The type of the returned value."""
        return self.value.type


class Program:
    """
    A view of a module as a program. Each fact is computed at its first use, and then
    kept. After a rewrite that changes arguments, results or calls, make a new view.
    Raises DistIRError if the module is not a program.
    """

    def __init__(self, module: ModuleOp):
        self.module = module
        self.entry = entry_function(module)

    @cached_property
    def functions(self) -> list[FuncOp]:
        """
        The functions that the entry function reaches, callees first, and the entry
        function last.
        """
        return reachable_functions(self.module)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of the entry function."""
        return arguments_of(self.entry)

    @cached_property
    def results(self) -> tuple[ProgramResult, ...]:
        """The results of the entry function."""
        return results_of(self.entry)

    @cached_property
    def updates(self) -> Mapping[int, int]:
        """
        Maps the index of each result that replaces an argument in the next step to the
        index of this argument. All other results are left out.
        """
        return updated_arguments(self.entry)

    @cached_property
    def links(self) -> Mapping[int, int]:
        """
        Maps the index of each result to the index of the argument whose layout it must
        have, because the result is an update or a gradient of the argument. Other
        results are left out.
        """
        return linked_arguments(self.entry)

    @cached_property
    def states(self) -> Mapping[int, int]:
        """
        Maps the argument index of each optimizer state to the argument index of its
        parameter.
        """
        return parameters_of_states(self.entry)

    @property
    def trains(self) -> bool:
        """Whether the program is a training step."""
        return is_training_step(self.entry)


def arguments_of(function: FuncOp) -> tuple[Argument, ...]:
    """
    Returns the arguments of a function, with names and roles. Raises DistIRError for an
    unknown role.
    """
    described = zip(
        function.body.block.args,
        argument_names(function),
        argument_roles(function),
        _dictionaries(function.arg_attrs, len(function.function_type.inputs)),
        strict=True,
    )
    return tuple([Argument(*each) for each in described])


def results_of(function: FuncOp) -> tuple[ProgramResult, ...]:
    """Returns the results of a function, with names and roles."""
    described = zip(
        return_op(function).operands,
        result_names(function),
        result_roles(function),
        _dictionaries(function.res_attrs, len(function.function_type.outputs)),
        strict=True,
    )
    return tuple([ProgramResult(i, *each) for i, each in enumerate(described)])


def _dictionaries(
    given: ArrayAttr[DictionaryAttr] | None, count: int
) -> Sequence[Mapping[str, Attribute]]:
    """
    Returns the attribute dictionaries of `count` arguments or results, without copying
    them.
    """
    return [{}] * count if given is None else [own.data for own in given.data]


def batch_size(function: FuncOp) -> int | None:
    """
    Returns the batch size: the first dimension of the first input that has dimensions,
    in its global shape. Returns None if no input has dimensions.
    """
    for value, role in zip(
        function.body.block.args, argument_roles(function), strict=True
    ):
        if role == "input" and (shape := shape_of(value.type)):
            return shape[0]
    return None
