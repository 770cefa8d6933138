"""
Chooses the paths at which the classes of a program hold their members and children.

Paths follow the names of the source model as far as possible. Layers whose names differ
in one number become `layers[0]`, `layers[1]`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import BlockArgument

from distir.lowering.source.classes import Classes, ModuleClass
from distir.lowering.source.paths import Path, PathTree, common_start, components
from distir.lowering.source.text import sanitized


@dataclass
class ClassLayout:
    """
    The paths in a class: the paths of its `members` by index, and the paths of its
    `children` by their class. `source` is the name of the first instance in the source
    model.
    """

    source: Path
    tree: PathTree = field(default_factory=PathTree)
    members: dict[int, Path] = field(default_factory=dict[int, Path])
    children: dict[ModuleClass, list[Path]] = field(
        default_factory=lambda: dict[ModuleClass, list[Path]]()
    )

    @property
    def has_elements(self) -> bool:
        """
        Whether a member or child of the class has a number as the first part of its
        path.
        """
        paths = [
            *self.members.values(),
            *(p for c in self.children.values() for p in c),
        ]
        return any(path[0].isdecimal() for path in paths)


class ModuleLayout:
    """
    The paths in all classes of a program. `names` are the names of the program's
    arguments in the source model.
    """

    def __init__(
        self,
        classes: Classes,
        names: dict[BlockArgument, str],
        words: dict[ModuleClass, str],
    ):
        self.classes = classes
        self.names = {arg: components(name) for arg, name in names.items()}
        self.words = words
        self.of: dict[ModuleClass, ClassLayout] = {}
        self._instances: dict[tuple[ModuleClass, int], Path] = {}
        root = classes.classes[0]
        self._instances[root, 0] = ()
        self._lay_out(root, ())

    def path(self, argument: BlockArgument) -> Path:
        """Returns the path of `argument` from the object of the whole program."""
        root = self.classes.classes[0]
        number = root.instances[0].index(argument)
        cls, instance, member = self.classes.owner.get(argument, (root, 0, number))
        return (*self._instances[cls, instance], *self.of[cls].members[member])

    def _lay_out(self, cls: ModuleClass, source: Path) -> None:
        made = self.of[cls] = ClassLayout(source)
        sources: dict[ModuleClass, Path] = {}
        for other in cls.children:
            made.children[other], sources[other] = self._children(cls, other)
        is_root = cls is self.classes.classes[0]
        for member, argument in enumerate(cls.instances[0]):
            if not (is_root and argument in self.classes.owner):
                path = self._inside(self.names[argument], source)
                made.members[member] = made.tree.add(path)
        for other, paths in made.children.items():
            for instance, numbers in enumerate(cls.children[other]):
                for number, path in zip(numbers, paths, strict=True):
                    start = self._instances[cls, instance]
                    self._instances[other, number] = (*start, *path)
            if other not in self.of:
                self._lay_out(other, sources[other])

    def _inside(self, name: Path, source: Path) -> Path:
        """
        Returns `name` without the prefix `source`, the name of the containing instance.
        If `name` has another prefix, returns its last two parts.
        """
        if name[: len(source)] == source and len(name) > len(source):
            return name[len(source) :]
        return name if not source else name[-2:]

    def _children(
        self, cls: ModuleClass, other: ModuleClass
    ) -> tuple[list[Path], Path]:
        """
        Returns the paths of the children of class `other` in class `cls`, and the name
        of the first instance of `other` in the source model.
        """
        tree = self.of[cls].tree
        count = len(cls.children[other][0])
        if not other.instances[0]:
            return [tree.add((self.words[other],))], ()
        known = [self._numbered(other, numbers) for numbers in cls.children[other]]
        keys = [numbers for _, numbers in known]
        start, first = known[0]
        if first and all(k == first for k in keys):
            inside = self._inside((*start, ""), self.of[cls].source)[:-1]
            # A scope of its own, so that nothing else uses these numbers.
            inside = inside or (self.words[other],)
            if tree.size(inside) == 0:
                source = (*start, first[other_first(cls, other)])
                return [tree.add((*inside, key)) for key in first], source
        scope = tree.unused(self.words[other])
        return [tree.add((scope, str(i))) for i in range(count)], ()

    def _numbered(
        self, other: ModuleClass, numbers: list[int]
    ) -> tuple[Path, list[str]]:
        """
        Returns the common start of the names of instances `numbers` of class `other`,
        and the number that follows it in each name. If a number is missing or two
        numbers are equal, returns an empty list of numbers.
        """
        starts: list[Path] = []
        for number in numbers:
            names = [self.names[a] for a in other.instances[number]]
            starts.append(common_start(names))
        common = common_start(starts)
        at = len(common)
        if any(len(start) <= at for start in starts):
            return common, []
        keys = [start[at] for start in starts]
        good = len(set(keys)) == len(keys) and all(k.isdecimal() for k in keys)
        return common, keys if good else []


def other_first(cls: ModuleClass, other: ModuleClass) -> int:
    """
    Returns the index, among the children of the first instance of `cls`, of the first
    instance of `other`. Returns 0 if that instance is not among these children.
    """
    numbers = cls.children[other][0]
    return numbers.index(0) if 0 in numbers else 0


def word(text: str) -> str:
    """
    Returns `text` as a lower-case identifier, or "part" if `text` has no usable
    character.
    """
    return sanitized(text).lower() or "part"
