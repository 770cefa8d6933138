"""
Groups the functions of a per-rank program into classes.

Each set of weights with which a function is called is an *instance*. An argument
position that takes a weight in every instance is a *member*. Functions with the same
instances, such as the forward and the backward function of a layer, are methods of one
class. A function with a single instance becomes a method of its caller's class, for
example of the class of the whole program. The names of functions and weights do not
matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument

from distir.program import (
    argument_roles,
    functions,
    parameters_of_states,
    reachable_functions,
)

HELD = frozenset(("parameter", "state", "constant"))
"""The roles of arguments that modules hold from one step to the next."""

Binding = tuple["BlockArgument | None", ...]
"""
For each argument of a function, the argument of the program that is passed, or None if
another value is passed.
"""


@dataclass(eq=False)
class ModuleClass:
    """
    A class of the generated program.

    - `functions`: its methods;
    - `instances`: for each instance, the program's arguments that it holds, in the
      order of members;
    - `positions`: for each method, the index of the member for each argument position
      that takes a member;
    - `children`: for each class of children, the children of each instance, as indices
      of instances of that class.
    """

    functions: list[FuncOp]
    instances: list[list[BlockArgument]] = field(
        default_factory=list[list[BlockArgument]]
    )
    positions: dict[FuncOp, dict[int, int]] = field(
        default_factory=dict[FuncOp, dict[int, int]]
    )
    children: dict[ModuleClass, list[list[int]]] = field(
        default_factory=lambda: dict[ModuleClass, list[list[int]]]()
    )


class _Rejected(Exception):
    """
    Raised for functions that cannot have members, and must therefore take their weights
    as arguments.
    """

    def __init__(self, rejected: set[FuncOp]):
        super().__init__()
        self.rejected = rejected


@dataclass
class Classes:
    """
    The classes of a program, with the class of the whole program first. `of` gives the
    class of each function. `child` gives, for a call of a child's method, the index of
    the child among the children of the same class. Calls of methods of the same object
    have no entry in `child`.
    """

    classes: list[ModuleClass]
    of: dict[FuncOp, ModuleClass]
    child: dict[CallOp, int]
    owner: dict[BlockArgument, tuple[ModuleClass, int, int]]
    """
    For each argument of the program that a class other than the first holds: the class,
    the index of the instance and the index of the member.
    """

    @staticmethod
    def find(module: ModuleOp) -> Classes:
        """Returns the classes of a per-rank program."""
        plain: set[FuncOp] = set()
        while True:
            try:
                return _Finder(module, plain).find()
            except _Rejected as rejected:
                assert not rejected.rejected <= plain
                plain |= rejected.rejected


class _Finder:
    """Finds the classes of a program. Functions in `plain` have no members."""

    def __init__(self, module: ModuleOp, plain: set[FuncOp]):
        self.known = functions(module)
        self.callers_first = list(reversed(reachable_functions(module)))
        self.entry = self.callers_first[0]
        self.plain = plain
        roles = argument_roles(self.entry)
        self.held = [
            arg
            for arg, role in zip(self.entry.args, roles, strict=True)
            if role in HELD
        ]
        self.bindings = self._all_bindings()
        self.root = ModuleClass([self.entry], [list(self.held)])
        places = {arg: i for i, arg in enumerate(self.held)}
        self.root.positions[self.entry] = {a.index: i for a, i in places.items()}
        self.classes = [self.root]
        self.of = {self.entry: self.root}
        # For each argument that a class holds: class, instance, member.
        self.owner: dict[BlockArgument, tuple[ModuleClass, int, int]] = {}
        self.child: dict[CallOp, int] = {}

    def find(self) -> Classes:
        single: list[FuncOp] = []
        for function in self._in_order_of_calls():
            if len(self._instances(function)) > 1:
                if not self._join(function):
                    self._make(function)
            else:
                single.append(function)
        for function in self.callers_first:
            if function in single:
                self._place_single(function)
        for function in self.callers_first:
            self._find_children(function)
        self._add_states()
        return Classes(self.classes, self.of, self.child, self.owner)

    def _calls(self, function: FuncOp) -> Iterator[tuple[CallOp, FuncOp]]:
        for op in function.body.block.ops:
            if isinstance(op, CallOp):
                yield op, self.known[op.callee.string_value()]

    def _in_order_of_calls(self) -> list[FuncOp]:
        """Returns all functions except the entry, in the order of their first calls."""
        found: dict[FuncOp, None] = {}
        pending = [self.entry]
        while pending:
            callees = [c for _, c in self._calls(pending.pop()) if c not in found]
            found.update(dict.fromkeys(callees))
            pending += reversed(dict.fromkeys(callees))
        return list(found)

    def _all_bindings(self) -> dict[FuncOp, list[Binding]]:
        own = tuple(arg if arg in self.held else None for arg in self.entry.args)
        found: dict[FuncOp, dict[Binding, None]] = {self.entry: {own: None}}
        for function in self.callers_first:
            for binding in found[function]:
                for call, callee in self._calls(function):
                    passed = self._passed(call, function, binding)
                    found.setdefault(callee, {}).setdefault(passed)
        return {function: list(each) for function, each in found.items()}

    def _passed(self, call: CallOp, caller: FuncOp, binding: Binding) -> Binding:
        """
        Returns the binding (the weight at each argument position, or None) of the
        function that `call` calls, given the binding of its caller.
        """
        return tuple(
            binding[v.index]
            if isinstance(v, BlockArgument) and v.owner is caller.body.block
            else None
            for v in call.operands
        )

    def _members(self, function: FuncOp) -> list[int]:
        """
        Returns the argument positions whose weights differ between bindings, or all
        positions of weights if the function has one binding.
        """
        if function in self.plain:
            return []
        bindings = self.bindings[function]
        return [
            i
            for i, column in enumerate(zip(*bindings, strict=True))
            if None not in column and (len(bindings) == 1 or len(set(column)) > 1)
        ]

    def _instances(self, function: FuncOp) -> list[list[BlockArgument]]:
        members = self._members(function)
        found: dict[tuple[BlockArgument, ...], None] = {}
        for binding in self.bindings[function]:
            own = [binding[i] for i in members]
            found.setdefault(tuple(a for a in own if a is not None))
        return [list(each) for each in found]

    def _join(self, function: FuncOp) -> bool:
        """
        Makes a function a method of the class that has the same instances. Returns
        False if no class holds any of its weights. Raises _Rejected if not all of the
        instances and members match.
        """
        instances = self._instances(function)
        owners = [
            {self.owner[a][:2] for a in instance if a in self.owner}
            for instance in instances
        ]
        if not any(owners):
            return False
        known = {cls for each in owners for cls, _ in each}
        numbers = [number for each in owners for _, number in each]
        cls = known.pop()
        if (
            known
            or any(len(each) != 1 for each in owners)
            or sorted(numbers) != list(range(len(cls.instances)))
        ):
            raise _Rejected({function})
        positions: dict[int, int] = {}
        for place, position in enumerate(self._members(function)):
            column = {
                n: each[place] for n, each in zip(numbers, instances, strict=True)
            }
            held = {
                self.owner[a][2] if a in self.owner else -1 for a in column.values()
            }
            if len(held) > 1 or len(set(column.values())) < len(column):
                raise _Rejected({function})
            (member,) = held
            if member < 0:
                member = len(cls.instances[0])
                for number, argument in column.items():
                    cls.instances[number].append(argument)
                    self.owner[argument] = (cls, number, member)
            positions[position] = member
        cls.functions.append(function)
        cls.positions[function] = positions
        self.of[function] = cls
        return True

    def _make(self, function: FuncOp) -> None:
        """Makes a new class with `function` as its first method."""
        instances = self._instances(function)
        every = [argument for instance in instances for argument in instance]
        if len(set(every)) < len(every):  # one weight in several places
            raise _Rejected({function})
        cls = ModuleClass([function], instances)
        cls.positions[function] = {
            position: i for i, position in enumerate(self._members(function))
        }
        for number, instance in enumerate(instances):
            for member, argument in enumerate(instance):
                self.owner[argument] = (cls, number, member)
        self.classes.append(cls)
        self.of[function] = cls

    def _place_single(self, function: FuncOp) -> None:
        """
        Makes a function with one instance a method of the class that calls it. If
        several classes call it, gives it a separate class.
        """
        callers = {
            self.of[caller]
            for caller in self.callers_first
            for _, callee in self._calls(caller)
            if callee is function
        }
        members = self._members(function)
        if members and callers != {self.root}:
            raise _Rejected({function})
        if len(callers) == 1:
            (cls,) = callers
            cls.functions.append(function)
        else:  # it holds nothing, so that each of its callers may have its own
            cls = ModuleClass([function], [[]])
            self.classes.append(cls)
        (binding,) = self.bindings[function][:1]
        self.of[function] = cls
        cls.positions[function] = {
            i: self.held.index(argument)
            for i in members
            if (argument := binding[i]) is not None
        }

    # Children

    def _find_children(self, function: FuncOp) -> None:
        cls = self.of[function]
        for call, callee in self._calls(function):
            other = self.of[callee]
            if other is cls:
                self._check_same(function, call, callee)
                continue
            if not other.instances[0]:
                cls.children.setdefault(other, [[0] for _ in cls.instances])
                self.child[call] = 0
                continue
            child = self._numbers(function, call, callee)
            slots = cls.children.setdefault(other, [[] for _ in cls.instances])
            if child not in (known := [list(s) for s in zip(*slots, strict=True)]):
                for own, number in zip(slots, child, strict=True):
                    own.append(number)
                known.append(child)
            self.child[call] = known.index(child)
        for other, slots in cls.children.items():
            every = [number for own in slots for number in own]
            shared = other.instances[0] and (
                len(set(every)) < len(every) or self._has_two_parents(other)
            )
            if shared:
                raise _Rejected(set(other.functions))

    def _numbers(self, function: FuncOp, call: CallOp, callee: FuncOp) -> list[int]:
        """
        Returns, for each instance of the caller's class, the index of the instance
        whose method the call runs.
        """
        cls, own = self.of[function], self.of[callee]
        position, _ = next(iter(own.positions[callee].items()))
        found: dict[int, int] = {}
        for binding in self.bindings[function]:
            argument = self._passed(call, function, binding)[position]
            assert argument is not None
            number = self.owner[argument][1]
            if found.setdefault(self._instance(function, binding), number) != number:
                raise _Rejected({callee})
        if len(found) < len(cls.instances):
            raise _Rejected({callee})
        return [found[i] for i in range(len(cls.instances))]

    def _instance(self, function: FuncOp, binding: Binding) -> int:
        """
        Returns the index of the instance on which a function runs if it is called with
        `binding`.
        """
        cls = self.of[function]
        if len(cls.instances) == 1:
            return 0
        if not cls.positions[function]:
            raise _Rejected(set(cls.functions))
        argument = binding[next(iter(cls.positions[function]))]
        assert argument is not None
        return self.owner[argument][1]

    def _check_same(self, function: FuncOp, call: CallOp, callee: FuncOp) -> None:
        """
        Raises _Rejected if a method calls another method of its class on a different
        instance.
        """
        cls = self.of[function]
        if len(cls.instances) == 1 or not cls.positions[callee]:
            return
        for binding in self.bindings[function]:
            passed = self._passed(call, function, binding)
            if self._instance(function, binding) != self._instance(callee, passed):
                raise _Rejected({callee})

    def _add_states(self) -> None:
        """
        Adds the optimizer states of each parameter that a class holds to the same
        class.
        """
        states: dict[BlockArgument, list[BlockArgument]] = {}
        for state, parameter in parameters_of_states(self.entry).items():
            if (own := self.entry.args[state]) in self.held and own not in self.owner:
                states.setdefault(self.entry.args[parameter], []).append(own)
        for cls in self.classes[1:]:
            for member in range(len(cls.instances[0])):
                own = [states.get(instance[member], []) for instance in cls.instances]
                if len(set(map(len, own))) > 1:
                    continue
                for number, found in enumerate(own):
                    for state in found:
                        place = cls, number, len(cls.instances[number])
                        self.owner[state] = place
                        cls.instances[number].append(state)

    def _has_two_parents(self, cls: ModuleClass) -> bool:
        parents = [c for c in self.classes if cls in c.children]
        every = [n for c in parents for own in c.children[cls] for n in own]
        return len(set(every)) < len(every)
