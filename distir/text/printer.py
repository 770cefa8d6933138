"""A printer that gives names to repeated types of distributed tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from io import StringIO
from itertools import count
from typing import Any, TextIO, TypeVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    UnitAttr,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import Layout, LayoutAttr, Shard
from distir.dialects.dist_attributes import BUCKET, SCOPE
from distir.program.locations import has_locations
from distir.text.number_printer import NumberPrinter

MIN_USES = 3
"""
The smallest number of uses at which a type gets a name. Other types are written in
full.
"""

_T = TypeVar("_T")

_DIALECTS = ("onnx.", "train.", "collective.", "dist.", "func.")
"""The dialects whose ops are printed without a look at the ops around them."""

_VARIED: dict[str, Attribute] = {n: StringAttr(f"\0{n}\0") for n in (SCOPE, BUCKET)}
"""
The names of attributes in which ops differ that are otherwise alike, and for each an
attribute that stands for them.
"""

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

    The printer has a cache, because a distributed program of many layers and stages
    repeats a few hundred ops thousands of times, with other values and scopes.
    """

    def __init__(self, stream: TextIO):
        # Text is written in small pieces, twice as fast to a StringIO as to a file.
        self._text = StringIO()
        self._file = stream
        super().__init__(stream=self._text)
        self._texts: dict[int, tuple[Attribute, str]] = {}
        """
        Maps the identity of a type or an attribute to the object and its text.
        Identities are the keys because hashing a type is slow; the stored objects keep
        them valid.
        """
        self._names: dict[int, str] = {}
        """The name of each value in the text, with `%`, by the value's identity."""
        self._forms: dict[tuple[object, ...], str] = {}
        """The text that several ops have in common; see `_form`."""
        self._keys: dict[str, str] = {}
        """The text of each name of an attribute."""
        self._prints_program = False

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
        self._texts = {
            identity: (type_, texts[type_])
            for identity, type_ in objects.items()
            if isinstance(type_, TensorType)
        }
        self._prints_program = not self.print_debuginfo
        self.print_op(module)
        self.print_string("\n")
        self._file.write(self._text.getvalue())

    def print_op(self, op: Operation) -> None:
        """
        Prints an op. In a program without locations, functions are printed at once, and
        so are ops that are alike to one that was printed before.
        """
        if self._prints_program:
            if type(op) is FuncOp and op.body.blocks:
                self._print_function(op)
                return
            if not op.regions and not op.successors and op.name.startswith(_DIALECTS):
                text = self._known_text(op)
                if text is not None:
                    self._text.write(text)
                    return
        super().print_op(op)

    def _known_text(self, op: Operation) -> str | None:
        """
        Returns the text of an op that is alike to another op. Returns None if the op
        must be printed by its class.
        """
        values = [*op.results, *op.operands]
        attributes = op.attributes
        # The ids are of objects that live as long as the module.
        key = (
            type(op),
            len(op.results),
            *[id(value.type) for value in values],
            *[(name, id(own)) for name, own in op.properties.items()],
            *[
                name if name in _VARIED else (name, id(own))
                for name, own in attributes.items()
            ],
        )
        form = self._forms.get(key)
        if form is None:
            form = self._form(op, values)
            if form is None:
                return None
            self._forms[key] = form
        names = self._names
        words = [names.get(id(value)) or self._named(value) for value in values]
        words += [self._entry(n, own) for n, own in attributes.items() if n in _VARIED]
        return form % tuple(words)

    def _form(self, op: Operation, values: Sequence[SSAValue]) -> str | None:
        """
        Returns the text of `op` as a format, with a gap for the name of each of its
        `values` (results, then operands) and for each attribute of `_VARIED`. Returns
        None unless the text has them in this order, each of them once.
        """
        names, attributes = self._names, op.attributes
        self._names = {id(value): f"\0{i}\0" for i, value in enumerate(values)}
        op.attributes = {n: _VARIED.get(n, own) for n, own in attributes.items()}
        try:
            text = self._captured(lambda: super(ProgramPrinter, self).print_op(op))
        finally:
            self._names, op.attributes = names, attributes
        varied = [name for name in attributes if name in _VARIED]
        for name in varied:
            text = text.replace(f'{name} = "\\00{name}\\00"', f"\0{name}\0")
        parts = text.replace("%", "%%").split("\0")
        if "\n" in text or parts[1::2] != [*map(str, range(len(values))), *varied]:
            return None
        return "%s".join(parts[::2])

    def _captured(self, action: Callable[[], None]) -> str:
        """Returns the text that `action` prints, instead of printing it."""
        outer = self._text
        self._text = self.stream = StringIO()
        try:
            action()
            return self._text.getvalue()
        finally:
            self._text = self.stream = outer

    def _print_function(self, function: FuncOp) -> None:
        """
        Prints a function that has a body, as xDSL does. The arguments, which may be
        thousands, are written at once.
        """
        properties = function.properties
        self.enter_scope()
        visibility = function.sym_visibility
        self.print_string("func.func ")
        if visibility is not None:
            self.print_string(f"{visibility.data} ")
        self.print_symbol_name(function.sym_name.data)
        arguments = [
            f"{self._names.get(id(value)) or self._named(value)}: {self._text_of(value.type)}"
            for value in function.body.blocks[0].args
        ]
        self.print_string(f"({self._with_attributes(arguments, function.arg_attrs)})")
        outputs = function.function_type.outputs.data
        if outputs:
            texts = [self._text_of(type_) for type_ in outputs]
            text = self._with_attributes(texts, function.res_attrs)
            is_bare = len(outputs) == 1 and function.res_attrs is None
            self.print_string(f" -> {text}" if is_bare else f" -> ({text})")
        self.print_op_attributes(
            function.attributes, reserved_attr_names=properties, print_keyword=True
        )
        self.print_string(" ")
        self.print_region(function.body, False, False)
        self.exit_scope()

    def _with_attributes(
        self, texts: Sequence[str], attributes: ArrayAttr[DictionaryAttr] | None
    ) -> str:
        """
        Returns the texts of a function's arguments or results, each followed by its
        attributes, with commas between them.
        """
        if attributes is None:
            return ", ".join(texts)
        return ", ".join(
            [
                f"{text} {self._dictionary(own.data)}" if own.data else text
                for text, own in zip(texts, attributes, strict=True)
            ]
        )

    def print_attr_dict(self, attr_dict: Mapping[str, Attribute]) -> None:
        """Prints attributes in braces."""
        self.print_string(self._dictionary(attr_dict))

    def _dictionary(self, attributes: Mapping[str, Attribute]) -> str:
        """Returns the text of attributes in braces."""
        entries = [self._entry(name, own) for name, own in attributes.items()]
        return f"{{{', '.join(entries)}}}"

    def _entry(self, name: str, attribute: Attribute) -> str:
        """Returns the text of an attribute and its name."""
        key = self._keys.get(name)
        if key is None:
            key = self._captured(partial(self.print_identifier_or_string_literal, name))
            self._keys[name] = key
        is_unit = type(attribute) is UnitAttr
        return key if is_unit else f"{key} = {self._text_of(attribute)}"

    def _text_of(self, attribute: Attribute) -> str:
        """Returns the text of an attribute or a type."""
        known = self._texts.get(id(attribute))
        if known is not None:
            return known[1]
        if type(attribute) is StringAttr and _PLAIN.fullmatch(attribute.data):
            return f'"{attribute.data}"'
        text = self._captured(
            lambda: super(ProgramPrinter, self).print_attribute(attribute)
        )
        self._texts[id(attribute)] = attribute, text
        return text

    def print_ssa_value(self, value: SSAValue) -> str:
        """Prints the name of `value`, and returns the name."""
        name = self._names.get(id(value)) or self._named(value)
        self._text.write(name)
        return name[1:]

    def _named(self, value: SSAValue) -> str:
        """Gives `value` a name, and returns it with `%`."""
        name = self._names[id(value)] = f"%{self._free_name(value.name_hint)}"
        return name

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
            names = self._names
            texts = [names.get(id(value)) or self._named(value) for value in elements]
        elif print_fn == self.print_attribute:
            texts = [self._text_of(element) for element in elements]
        if len(texts) == len(elements):
            self.print_string(delimiter.join(texts))
        else:
            super().print_list(elements, print_fn, delimiter)

    def print_attribute(self, attribute: Attribute) -> None:
        """Prints an attribute. For a type that has a name, prints the name."""
        self._text.write(self._text_of(attribute))


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
