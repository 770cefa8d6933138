"""
The names, layouts and imports that are common to all classes of one rank's program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp

from distir.lowering.source.classes import Classes, ModuleClass
from distir.lowering.source.constants import WrittenConstants
from distir.lowering.source.layout import ModuleLayout, word
from distir.lowering.source.text import sanitized
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    functions,
    reachable_functions,
)


@dataclass
class ClassTexts:
    """
    The source texts of a package's classes by name, except the classes of whole ranks.
    Each class comes after the classes that it uses. Ranks share classes with equal
    texts.
    """

    texts: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, hint: str, body: str) -> str:
        """
        Adds a class with text `body`, which begins at the parenthesis of its base, and
        returns its name: `hint`, with a number if another class has this name. A class
        with the same text is reused.
        """
        name, count = hint, 1
        while self.texts.setdefault(name, body) != body:
            count += 1
            name = f"{hint}{count}"
        return name


class RankClasses:
    """The state that the classes of a rank's program share while they are written."""

    def __init__(
        self,
        module: ModuleOp,
        devices: Sequence[int],
        texts: ClassTexts,
        constants: WrittenConstants,
    ):
        self.module, self.devices = module, devices
        self.texts, self.constants = texts, constants
        self.known = functions(module)
        self.entry = entry_function(module)
        self.classes = Classes.find(module)
        self.roles = argument_roles(self.entry)
        self.callers: dict[str, CallOp] = {}
        self.passed_members: dict[CallOp, set[int]] = {}
        for function in reversed(reachable_functions(module)):
            for op in function.body.block.ops:
                if isinstance(op, CallOp):
                    self.callers.setdefault(op.callee.string_value(), op)
                    callee = self.callee(op)
                    own = self.classes.of[callee].positions[callee]
                    self.passed_members[op] = set(own)
        self.words = {cls: _words(cls) for cls in self.classes.classes}
        names = argument_names(self.entry)
        held = {a: names[a.index] for a in self.classes.classes[0].instances[0]}
        small = {cls: word(words) for cls, words in self.words.items()}
        self.layout = ModuleLayout(self.classes, held, small)
        self.methods: dict[FuncOp, str] = {}
        for cls in self.classes.classes:
            self._name_methods(cls)
        self.helpers: set[str] = set()
        self.numbers: list[int] = []
        self.groups: set[tuple[str, tuple[str, ...]]] = set()
        self.written: dict[ModuleClass, tuple[str, bool]] = {}
        """
        For each class that has been written, its name, and whether its constructor
        takes meshes and numbers.
        """

    def callee(self, call: CallOp) -> FuncOp:
        """Returns the function that a call calls."""
        return self.known[call.callee.string_value()]

    def method_name(self, call: CallOp) -> str:
        """Returns the name of the method that a call calls."""
        return self.methods[self.callee(call)]

    def members_passed(self, call: CallOp) -> set[int]:
        """
        Returns the positions of a call's operands that the callee holds as members.
        """
        return self.passed_members[call]

    def _name_methods(self, cls: ModuleClass) -> None:
        names = self.layout.of[cls].tree.names
        start = self.words[cls]
        taken: set[str] = set()
        for function in cls.functions:
            own = sanitized(function.sym_name.data)
            if cls is not self.classes.classes[0]:
                own = own.removeprefix(start).strip("_") or "forward"
            if function is self.entry:
                own = "forward"
            if own != "forward" or own in taken:
                own = names.fresh(own, "method")
            taken.add(own)
            self.methods[function] = own


def _words(cls: ModuleClass) -> str:
    """
    Returns the common first words of the names of a class's functions. Without common
    words, returns the whole name of the first function.
    """
    split = [sanitized(f.sym_name.data).split("_") for f in cls.functions]
    common: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return "_".join(common) or "_".join(split[0]) or "part"
