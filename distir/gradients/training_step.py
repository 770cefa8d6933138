"""
The entry function of a program, while `differentiate` turns the forward program into a
training step.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, UnitAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist_attributes import COUNTER, NAME, ROLE, UPDATES
from distir.dialects.train_ops.optimizers import STEP
from distir.errors import DistIRError
from distir.program import (
    argument_attributes,
    argument_names,
    entry_function,
    name_hint,
    result_attributes,
    result_names,
    return_op,
    set_argument_attributes,
    set_results,
    updated_arguments,
)
from distir.program.repacking import repacked_arguments


class TrainingStep:
    """
    Adds arguments, ops and results to an entry function, to turn a forward program into
    a training step.
    """

    def __init__(self, module: ModuleOp):
        self.module = module
        self.function: FuncOp = entry_function(module)
        self.block = self.function.body.block
        self.attributes = argument_attributes(self.function)
        self.names = argument_names(self.function)
        for attributes, name in zip(self.attributes, self.names, strict=True):
            attributes.setdefault(NAME, StringAttr(name))  # what states are of
        self.repacked = repacked_arguments(self.function)
        self._taken = set(self.names)

    def argument(
        self,
        type_: Attribute,
        role: str,
        name: str,
        attributes: Mapping[str, Attribute] = {},
        *,
        position: int | None = None,
    ) -> SSAValue:
        """
        Adds an argument with the given role, name and further attributes, and returns
        it. By default it becomes the last argument, and `finish` later updates the
        function's type and argument attributes, because an update per argument would be
        slow. With a `position`, type and attributes are updated at once. Raises
        DistIRError if an argument already has the name.
        """
        if name in self._taken:
            raise DistIRError(
                f"differentiate: the program already has an argument {name!r}"
            )
        is_last = position is None
        position = len(self.block.args) if position is None else position
        arg = self.block.insert_arg(type_, position)
        arg.name_hint = name_hint(name.replace(".", "_"))
        self.attributes.insert(
            position,
            {ROLE: ROLE.attr(role), NAME: NAME.attr(name), **attributes},
        )
        self.names.insert(position, name)
        self._taken.add(name)
        if not is_last:
            self.describe_arguments()
        return arg

    def replaced(
        self, result: tuple[SSAValue, Mapping[str, Attribute]]
    ) -> SSAValue | None:
        """
        Returns the argument that `result` replaces in the next step, or None if the
        result replaces no argument.
        """
        name = UPDATES.of(result[1])
        return None if name is None else self.block.args[self.names.index(name)]

    def counter(self) -> SSAValue | None:
        """
        The argument that counts the steps done so far, or None if the step has no
        counter.
        """
        for arg, attributes in zip(self.block.args, self.attributes, strict=True):
            if COUNTER in attributes:
                return arg
        return None

    def add_counter(self) -> SSAValue:
        """
        Adds an argument that counts the steps done so far, and returns it. The caller
        must add the result that replaces the counter in the next step.
        """
        return self.argument(TensorType(i64, []), "state", STEP, {COUNTER: UnitAttr()})

    def describe_arguments(self) -> None:
        """Updates the function's type and the attributes of its arguments."""
        self.function.update_function_type()
        set_argument_attributes(self.function, self.attributes)

    def kept(self) -> list[tuple[SSAValue, dict[str, Attribute]]]:
        """
        Returns the results of the forward program that update arguments, such as
        running statistics. Each result comes with its attributes.
        """
        self.describe_arguments()
        values, attributes = (
            return_op(self.function).operands,
            result_attributes(self.function),
        )
        return [(values[i], attributes[i]) for i in updated_arguments(self.function)]

    def outputs(self) -> list[tuple[SSAValue, dict[str, Attribute]]]:
        """
        Returns the results of the forward program that update no argument. Each result
        comes with its attributes, which include a name.
        """
        values, updates = (
            return_op(self.function).operands,
            updated_arguments(self.function),
        )
        names, attributes = (
            result_names(self.function),
            result_attributes(self.function),
        )
        return [
            (value, {**attributes[i], NAME: NAME.attr(names[i])})
            for i, value in enumerate(values)
            if i not in updates
        ]

    def finish(self, results: list[tuple[SSAValue, dict[str, Attribute]]]) -> None:
        """
        Replaces the function's results by `results`, each with its attributes, and
        updates the function's type and the attributes of its arguments.
        """
        self.describe_arguments()
        values = [value for value, _ in results]
        set_results(self.function, values, [attributes for _, attributes in results])

    def insert(self, op: Operation) -> None:
        """Inserts an op right before the function's return."""
        self.block.insert_op_before(op, return_op(self.function))
