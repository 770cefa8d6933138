"""
The names in the methods of a class: variables of values, and paths of members, children
and process groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.dialects.torch import Overwriting
from distir.errors import DistIRError
from distir.lowering.source.classes import ModuleClass
from distir.lowering.source.layout import word
from distir.lowering.source.paths import Path, expression
from distir.lowering.source.rank_classes import RankClasses
from distir.lowering.source.text import sanitized
from distir.program import describe, parameters_of_states, scope_of
from distir.transforms.projection import MESH
from distir.transforms.repeats.naming import VARYING


def overwritten_by_updates(entry: FuncOp) -> dict[SSAValue, int]:
    """
    Returns the values that overwrite arguments of `entry`, each with the index of its
    argument.
    """
    return {
        result: operand.index
        for op in entry.body.block.ops
        if isinstance(op, Overwriting)
        for result, operand in op.overwritten.items()
        if isinstance(operand, BlockArgument)
    }


class ClassNames:
    """
    The names in one class, and the attributes that their use requires. `meshes` and
    `constants` hold the attributes that the class must set. `uses_numbers` tells
    whether the class needs the indices of processes.
    """

    def __init__(self, program: RankClasses, cls: ModuleClass):
        self.program, self.cls = program, cls
        self.layout = program.layout.of[cls]
        self.attributes = self.layout.tree.names
        self.meshes: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self.uses_numbers = False
        is_root = cls is program.classes.classes[0]
        self.overwritten = overwritten_by_updates(program.entry) if is_root else {}
        self.scope = _scope_of_all(cls.functions)

    def hint(self, value: SSAValue) -> str:
        """
        Returns a suggested name for a value: its name hint, or the hint of the
        corresponding value in a called function or in the caller. Without a hint,
        returns the name of the op that computes the value.
        """
        # The argument of a function that was entered by a call is that call's operand.
        entered: list[CallOp] = []
        while not value.name_hint:
            owner = value.owner
            if isinstance(owner, CallOp):
                body = self.program.callee(owner).body.block
                assert isinstance(value, OpResult) and body.last_op is not None
                entered.append(owner)
                value = body.last_op.operands[value.index]
            elif isinstance(owner, Operation):
                return sanitized(owner.name.rpartition(".")[2]).lower()
            else:
                assert isinstance(value, BlockArgument)
                function = owner.parent_op()
                assert isinstance(function, FuncOp)
                known = self.program.callers.get(function.sym_name.data)
                caller = entered.pop() if entered else known
                if caller is None:
                    return "x"
                value = caller.operands[value.index]
        return value.name_hint

    def helper(self, module: str) -> str:
        """Returns the name of a helper module, and adds the module to the package."""
        self.program.helpers.add(module)
        return module

    def group(self, op: Operation, axes: tuple[str, ...]) -> str:
        """
        Returns the expression for the process group of a collective `op` over mesh axes
        `axes`. Raises DistIRError if the op names no mesh.
        """
        symbol = op.attributes.get(MESH)
        if not isinstance(symbol, SymbolRefAttr):
            raise DistIRError(
                f"{describe(op)} does not name its mesh; lower the distributed program, "
                f"or the output of `project`"
            )
        name = symbol.string_value()
        if name not in self.meshes:
            self.meshes[name] = self.attributes.fresh(name, "mesh")
        self.program.groups.add((name, axes))
        return f"self.{self.meshes[name]}.group({', '.join(map(repr, axes))})"

    def number(self, value: int) -> str:
        """
        Returns the expression for the process of device `value`: an element of the
        rank's `numbers`, so that ranks with different numbers can share the class.
        """
        self.uses_numbers = True
        numbers, number = self.program.numbers, self.program.devices.index(value)
        if number not in numbers:
            numbers.append(number)
        return f"self.numbers[{numbers.index(number)}]"

    def constant(self, array: npt.NDArray[Any], hint: str | None) -> str:
        """
        Returns the attribute that holds the constant tensor `array`. `__init__` sets
        the attribute.
        """
        written = self.program.constants.expression(array, hint)
        if written not in self.constants:
            self.constants[written] = self.attributes.fresh(hint, "constant")
        return f"self.{self.constants[written]}"

    def member_path(self, member: int) -> Path:
        """Returns the path of the member with index `member` in this class."""
        program, root = self.program, self.program.classes.classes[0]
        if self.cls is root:
            return program.layout.path(root.instances[0][member])
        return self.layout.members[member]

    def child_path(self, call: CallOp) -> Path | None:
        """
        Returns the path of the object whose method is called, or None for the object
        itself.
        """
        if call not in self.program.classes.child:
            return None
        other = self.program.classes.of[self.program.callee(call)]
        return self.layout.children[other][self.program.classes.child[call]]

    def child_name(self, call: CallOp) -> str:
        """Returns a variable name for the object whose method is called."""
        other = self.program.classes.of[self.program.callee(call)]
        return word(self.program.words[other])

    def iterated(self, paths: Sequence[Path]) -> str:
        """Returns an expression that iterates over the objects at `paths`."""
        scope = paths[0][:-1]
        text = expression(scope)
        keys = [path[-1] for path in paths]
        if all(p[:-1] == scope for p in paths):
            every = [p[-1] for p in self._children_at(scope)]
            if len(every) == len(keys) == self.layout.tree.size(scope):
                if keys == every:
                    return text
                if keys == every[::-1]:
                    return f"reversed({text})"
            return f"({text}[i] for i in {number_range(keys)})"
        return f"({', '.join(expression(p) for p in paths)})"

    def _children_at(self, scope: Path) -> list[Path]:
        every = [p for paths in self.layout.children.values() for p in paths]
        found = [p for p in every if p[:-1] == scope]
        return sorted(found, key=lambda p: int(p[-1]))  # as they are made

    def shown_scope(self, scope: str) -> str:
        """Returns a scope for a comment in a method: without the scope of the class."""
        parts = scope.split(".")
        own = self.scope.split(".") if self.scope else []
        return ".".join(parts[len(own) :] if parts[: len(own)] == own else parts)

    def parameters(self) -> dict[tuple[str, ...], list[str]]:
        """
        Returns the paths of the parameters, grouped by the kinds of optimizer states
        that they have.
        """
        program, members = self.program, self.layout.members
        places = {argument: m for m, argument in enumerate(self.cls.instances[0])}
        own: dict[int, list[str]] = {
            m: []
            for m in members
            if program.roles[self.cls.instances[0][m].index] == "parameter"
        }
        for state, parameter in parameters_of_states(program.entry).items():
            of = places.get(program.entry.args[parameter], -1)
            path = members.get(places.get(program.entry.args[state], -1))
            if path is not None and of in own:
                start = f"{'.'.join(members[of])}_"
                if (text := ".".join(path)).startswith(start):
                    own[of].append(text.removeprefix(start))
        found: dict[tuple[str, ...], list[str]] = {}
        for m, kinds in own.items():
            found.setdefault(tuple(kinds), []).append(".".join(members[m]))
        return found

    def declared(self) -> dict[str, list[str]]:
        """
        Returns the paths of all parameters (key "") and of the states of each kind, in
        the order in which the class declares them.
        """
        found: dict[str, list[str]] = {"": []}
        for kinds, paths in self.parameters().items():
            found[""] += paths
            for kind in kinds:
                found.setdefault(kind, []).extend(f"{p}_{kind}" for p in paths)
        return found

    def all_of_kind(
        self, start: str, numbers: Sequence[int], ends: Sequence[str]
    ) -> str | None:
        """
        Returns a short expression for all parameters, or for all states of one kind, of
        several children in a list, or None if there is no such expression. `start` is
        the expression of the list, and `numbers` are the indices of the children.
        `ends` are the paths of the tensors inside each child; they must be exactly the
        parameters or states that the child's class declares.
        """
        for other, paths in self.layout.children.items():
            known = {expression(path) for path in paths}
            if any(f"{start}[{number}]" not in known for number in numbers):
                continue
            for kind, own in ClassNames(self.program, other).declared().items():
                if [expression(p.split("."), "") for p in own] == list(ends):
                    given = f", {kind!r}" if kind else ""
                    return f"modules.tensors(each{given})"
        return None


def number_range(keys: Sequence[str]) -> str:
    """
    Returns an expression to iterate over the integers that the strings `keys` hold.
    """
    numbers = [int(key) for key in keys]
    first, last = numbers[0], numbers[-1]
    if numbers == list(range(first, last + 1)):
        return f"range({first}, {last + 1})" if first else f"range({last + 1})"
    if numbers == list(range(first, last - 1, -1)):
        return f"reversed({number_range(keys[::-1])})"
    return f"({', '.join(map(str, numbers))},)"


def _scope_of_all(known: Sequence[FuncOp]) -> str:
    """
    Returns the common scope of all ops of a class's functions, up to the last part that
    differs between instances, or an empty string if no part differs.
    """
    scopes = [scope_of(op) for f in known for op in f.body.block.ops]
    split = [scope.split(".") for scope in scopes if scope]
    common: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    while common and common[-1] != VARYING:
        common.pop()
    return ".".join(common)
