"""Writes the program of one rank as Python classes, with functions as methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from distir.dialects.torch import AwaitGradientsOp
from distir.lowering.source.class_names import (
    ClassNames,
    number_range,
    overwritten_by_updates,
)
from distir.lowering.source.classes import ModuleClass
from distir.lowering.source.method import Method
from distir.lowering.source.rank_classes import RankClasses
from distir.lowering.source.text import broken
from distir.program import return_op


@dataclass
class ClassSource:
    """
    The source of a rank's program.

    - `body`: the class without its `class` line, indented by four spaces; the entry
      function is its method `forward`.
    - `helpers`: the helper modules that the class uses.
    - `numbers`: the indices of peer processes, which differ between ranks with the same
      class.
    - `groups`: the pairs of a mesh and a tuple of its axes whose process groups the
      class uses.
    - `members`: for each argument that a module holds, by index, the path of the module
      and the member's name.
    - `overwritten`: for each result that overwrites an argument, the index of the
      argument.
    - `given`: the indices of the results that the program gives before it takes the
      arguments `awaited`, which are gradients of results; both come in `parts` parts,
      one for each micro-batch.
    - `graphs`: functions that were chosen for CUDA graphs, each with the reason why it
      is not captured, or an empty string if it is.
    """

    body: str
    helpers: frozenset[str]
    numbers: tuple[int, ...]
    groups: frozenset[tuple[str, tuple[str, ...]]]
    members: dict[int, str]
    overwritten: dict[int, int]
    given: tuple[int, ...] = ()
    awaited: tuple[int, ...] = ()
    parts: int = 0
    graphs: dict[str, str] = field(default_factory=dict[str, str])


def class_source(classes: RankClasses) -> ClassSource:
    """
    Returns the class of a rank's program, and adds the classes of its parts to
    `classes.texts`.
    """
    root = classes.classes.classes[0]
    body = ClassWriter(classes, root).body()
    results = return_op(classes.entry).operands
    places = overwritten_by_updates(classes.entry)
    given: tuple[int, ...] = ()
    awaited: tuple[int, ...] = ()
    parts = 0
    for op in classes.entry.body.block.ops:
        if isinstance(op, AwaitGradientsOp):
            given = tuple(map(int, op.places.iter_values()))
            awaited = tuple(map(int, op.arguments.iter_values()))
            parts += 1
    return ClassSource(
        body,
        frozenset(classes.helpers),
        tuple(classes.numbers),
        frozenset(classes.groups),
        {a.index: ".".join(classes.layout.path(a)) for a in root.instances[0]},
        {i: places[v] for i, v in enumerate(results) if v in places},
        given,
        awaited,
        parts,
    )


class ClassWriter:
    """Writes one class of a program as Python source."""

    def __init__(self, program: RankClasses, cls: ModuleClass):
        self.program, self.cls = program, cls
        self.names = ClassNames(program, cls)
        self.layout = self.names.layout

    def body(self) -> str:
        """Returns the class without its first line."""
        lines: list[str] = []
        for function in self.cls.functions:
            name = self.program.methods[function]
            lines += ["", *Method(self.names, function, name).text()]
        return _indented([*self._constructor(), *lines])

    def _constructor(self) -> list[str]:
        setup: list[str] = ["super().__init__()"]
        setup += [f"self.{a} = meshes[{m!r}]" for m, a in self.names.meshes.items()]
        children = self._make_children()
        needs = any(self.program.written[c][1] for c in self.cls.children)
        if self.names.uses_numbers:
            setup.append("self.numbers = numbers")
        setup += [f"self.{a} = {text}" for text, a in self.names.constants.items()]
        setup += self._members()
        setup += children
        is_root = self.cls is self.program.classes.classes[0]
        needs = is_root or needs or self.names.uses_numbers or bool(self.names.meshes)
        if not is_root:
            name = _class_name(self.program.words[self.cls])
            self.program.written[self.cls] = name, needs
        if not needs and len(setup) == 1:
            return []
        given = "self, meshes, numbers" if needs else "self"
        lines = [line for each in setup for line in broken(each)]
        return [f"def __init__({given}):", *("    " + line for line in lines)]

    def _members(self) -> list[str]:
        """
        Returns the lines that declare members. Parameters with the same kinds of
        optimizer states share a line.
        """
        lines: list[str] = []
        for kinds, paths in self.names.parameters().items():
            given = ["self", *map(repr, paths)]
            given += [f"states={kinds!r}"] if kinds else []
            lines.append(f"modules.add_parameters({', '.join(given)})")
        declared = {p for own in self.names.declared().values() for p in own}
        every = {".".join(path): None for path in self.layout.members.values()}
        others = [repr(path) for path in every if path not in declared]
        if others:
            lines.append(f"modules.add_buffers({', '.join(['self', *others])})")
        return lines

    def _make_children(self) -> list[str]:
        lines: list[str] = []
        for other, paths in self.layout.children.items():
            writer = ClassWriter(self.program, other)
            body = writer.body()
            hint, needs = self.program.written[other]
            base = "modules.Scope" if writer.layout.has_elements else "nn.Module"
            text = f"({base}):\n{_documented(other, self.program)}{body}"
            name = self.program.texts.add(hint, text)
            self.program.written[other] = name, needs
            made = f"{name}({'meshes, numbers' if needs else ''})"
            scope = ".".join(paths[0][:-1])
            if len(paths) == 1:
                path = ".".join(paths[0])
                lines.append(f"modules.add_module(self, {path!r}, {made})")
                continue
            keys = number_range(sorted((p[-1] for p in paths), key=int))
            lines.append(f"for i in {keys}:")
            pattern = f"{scope}.{{i}}"
            lines.append(f"    modules.add_module(self, f{pattern!r}, {made})")
        return lines


def _documented(cls: ModuleClass, program: RankClasses) -> str:
    """
    Returns the docstring line of a class. The line names the list that contains its
    instances.
    """
    layout = program.layout.of[cls]
    start = ".".join(layout.source[:-1])
    what = f"An element of `{start}`." if start else "A part of the program."
    return f'    """{what}"""\n\n'


def _class_name(words: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in words.split("_")) or "Part"


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in lines)
