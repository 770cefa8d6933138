"""A printer that gives names to repeated types of distributed tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from io import StringIO
from itertools import count
from typing import Any, TextIO, TypeVar

from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.ir import Attribute

from distir.dialects.dist import Layout, LayoutAttr, Shard
from distir.program.locations import has_locations
from distir.text.number_printer import NumberPrinter

MIN_USES = 3
"""
The smallest number of uses at which a type gets a name. Other types are written in
full.
"""

_T = TypeVar("_T")

_PLAIN = re.compile(r"[ !#-\[\]-~]*+")
"""Matches text that needs no escapes in a string."""


class ProgramPrinter(NumberPrinter):
    """
    Prints a module as MLIR text. A tensor type with a layout is defined once and then
    referred to by a name:

        !f32_8d_32t = tensor<8x32xf32, #dist.layout<@stage0, [{d}, {t}]>>

    The name describes the type: the element type, the size of each dimension with the
    axes that split it, the axes over which values are partial, and the mesh if the
    module has several meshes (`!bf16_64d_4096_sum_t_stage3`). Types that would get the
    same name are numbered. The names are for people: no code reads information out of
    them.
    """

    def __init__(self, stream: TextIO):
        # Text is written in small pieces, twice as fast to a StringIO as to a file.
        self._text = StringIO()
        self._file = stream
        super().__init__(stream=self._text)
        self._types: dict[int, tuple[Attribute, str]] = {}
        """
        Maps the identity of a tensor type to the type and its text. Identities are the
        keys because hashing a type is slow; the stored types keep them valid.
        """

    def print_program(self, module: ModuleOp, *, with_locations: bool = False) -> None:
        """
        Prints the definitions of types, the module and a final line break. With
        `with_locations`, ops get their locations (`loc("model.py":12:3)`), if any op of
        the module has one.
        """
        self.print_debuginfo = with_locations and has_locations(module)
        found = _types(module)
        objects = {id(type_): type_ for type_ in found}
        uses = Counter[Attribute]()
        for identity, times in Counter(map(id, found)).items():
            if isinstance(objects[identity], TensorType):
                uses[objects[identity]] += times
        layouts = [_layout_of(type_) for type_ in uses]
        show_mesh = len({layout.mesh for layout in layouts if layout}) > 1
        taken = set[str]()
        texts = {type_: str(type_) for type_ in uses}
        for type_, times in uses.items():
            if times >= MIN_USES and _layout_of(type_) is not None:
                alias = _unique(_alias(type_, show_mesh), taken)
                self.print_string(f"{alias} = {texts[type_]}\n")
                texts[type_] = alias
        self._types = {
            identity: (type_, texts[type_])
            for identity, type_ in objects.items()
            if isinstance(type_, TensorType)
        }
        self.print_op(module)
        self.print_string("\n")
        self._file.write(self._text.getvalue())

    def print_string(self, text: str, *, indent: int | None = None) -> None:
        """
        Prints text. Text without a line break is written directly, because it needs no
        indentation.
        """
        if "\n" in text:
            super().print_string(text, indent=indent)
        else:
            self._text.write(text)

    def print_list(
        self,
        elems: Iterable[_T],
        print_fn: Callable[[_T], Any],
        delimiter: str = ", ",
    ) -> None:
        """
        Prints elements with delimiters between them. Names of values and of types are
        joined and written at once, because calls of functions have hundreds of
        operands.
        """
        elements: list[Any] = list(elems)
        texts: list[str] = []
        if print_fn == self.print_ssa_value:
            texts = [f"%{self.name_of(value)}" for value in elements]
        elif print_fn == self.print_attribute:
            known = [self._types.get(id(element)) for element in elements]
            texts = [type_and_text[1] for type_and_text in known if type_and_text]
        if len(texts) == len(elements):
            self.print_string(delimiter.join(texts))
        else:
            super().print_list(elements, print_fn, delimiter)

    def print_attribute(self, attribute: Attribute) -> None:
        """Prints an attribute. For a type that has a name, prints the name."""
        known = self._types.get(id(attribute))
        if known is not None:
            self._text.write(known[1])
        elif isinstance(attribute, StringAttr) and _PLAIN.fullmatch(attribute.data):
            self._text.write(f'"{attribute.data}"')
        else:
            super().print_attribute(attribute)


def _types(module: ModuleOp) -> list[Attribute]:
    """
    Returns the types of all values. A type occurs once for every time that it is
    printed.
    """
    found: list[Attribute] = []
    for op in module.walk():
        for region in op.regions:
            for block in region.blocks:
                found += [arg.type for arg in block.args]
        found += [value.type for value in op.operands]
        found += [value.type for value in op.results]
    return found


def _layout_of(type_: Attribute) -> Layout | None:
    if isinstance(type_, TensorType):
        encoding = type_.encoding
        if isinstance(encoding, LayoutAttr):
            return encoding.data
    return None


def _alias(type_: Attribute, show_mesh: bool) -> str:
    """
    Returns a name that describes a tensor type with a layout. Several types may have
    the same name.
    """
    assert isinstance(type_, TensorType)
    layout = _layout_of(type_)
    assert layout is not None
    shape = type_.get_shape()
    sizes = zip(shape, layout.full_dims(len(shape)), strict=False)
    parts = [str(type_.element_type), *[_dim(size, shards) for size, shards in sizes]]
    for axis, reduction in layout.partial:
        parts += [reduction, axis]
    if show_mesh:
        parts.append(layout.mesh)
    return "!" + re.sub(r"\W", "_", "_".join(parts), flags=re.ASCII)


def _dim(size: int, shards: Iterable[Shard]) -> str:
    """
    Returns the part of a type's name for a dimension of size `size` that `shards`
    split.
    """
    axes = (s.axis if s.run is None else f"{s.axis}{s.run}" for s in shards)
    return f"{'dyn' if size < 0 else size}{''.join(axes)}"


def _unique(name: str, taken: set[str]) -> str:
    """
    Returns `name`, or `name` followed by a number if it is in `taken`, and adds the
    result to `taken`.
    """
    names = (name if n == 1 else f"{name}_v{n}" for n in count(1))
    found = next(n for n in names if n not in taken)
    taken.add(found)
    return found
