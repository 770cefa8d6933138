"""Writes the program of one rank as Python classes: functions become methods of modules."""

from __future__ import annotations

from dataclasses import dataclass, field

from distir.lowering.source.class_names import overwritten_by_updates
from distir.lowering.source.class_writer import ClassWriter
from distir.lowering.source.rank_classes import RankClasses
from distir.program import return_op


@dataclass
class ClassSource:
    """
    The program of a rank.

    - `body`: the class without its `class` line, indented by four spaces; the entry
      function is its method `forward`.
    - `helpers`: the helper modules that it uses.
    - `numbers`: the integers (peers) that differ between ranks that share the class.
    - `groups`: for each mesh, the tuples of axes whose process groups it uses.
    - `members`: for arguments that modules hold, by index, the path of the module and the
      name there.
    - `overwritten`: for results that are overwritten arguments, the index of the argument.
    - `graphs`: functions that are to be CUDA graphs, with the reason why they are not.
    """

    body: str
    helpers: frozenset[str]
    numbers: tuple[int, ...]
    groups: frozenset[tuple[str, tuple[str, ...]]]
    members: dict[int, str]
    overwritten: dict[int, int]
    graphs: dict[str, str] = field(default_factory=dict[str, str])


def class_source(classes: RankClasses) -> ClassSource:
    """
    Returns the class of a rank's program; the classes of its parts are added to
    `classes.texts`.
    """
    root = classes.classes.classes[0]
    body = ClassWriter(classes, root).body()
    results = return_op(classes.entry).operands
    places = overwritten_by_updates(classes.entry)
    return ClassSource(
        body,
        frozenset(classes.helpers),
        tuple(classes.numbers),
        frozenset(classes.groups),
        {a.index: ".".join(classes.layout.path(a)) for a in root.instances[0]},
        {i: places[v] for i, v in enumerate(results) if v in places},
    )
