"""A parser's cache of the ops that it has read, keyed by their text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import StringAttr, SymbolRefAttr
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist_attributes import SCOPE
from distir.program import is_name_hint

_OP = re.compile(
    r"(?:%[^=\n]*+= )?(?:onnx|train|collective|dist|func)\.(?!func\b)"
    r"[^\n]*+(?<=[\w>)])(?=\s*+(?:\}|%[^=\n]*+= |[a-zA-Z_]\w*+\.))"
)
"""
Matches an op whose text is one line that ends with a type, if the text after it cannot
belong to the op.
"""

_VALUE = re.compile(r"%([0-9]++|[a-zA-Z$._-][a-zA-Z0-9$._-]*+)")
_SCOPE_START = f'{SCOPE} = "'
_SCOPE = re.compile(rf'\b{_SCOPE_START}([^"\\\n]*+)"')
_CALL = re.compile(
    r"(?:[%,: 0-9]*+= )?func\.call @([a-zA-Z_][a-zA-Z0-9_]*+)\(", re.ASCII
)
_TYPE_NAME = re.compile(r"(![a-zA-Z_][a-zA-Z0-9_$]*+)(?![.-]|\s*<)", re.ASCII)


@dataclass(frozen=True)
class OpText:
    """
    The text of an op, divided into a part that the op has in common with many ops and
    the parts in which the ops differ.
    """

    key: str
    """The text of the op without the names of values and without the scope."""
    names: list[str]
    """The names of results and operands, in the order of the text."""
    scope: str | None
    end: int
    """The position in the file after the op's text."""

    @staticmethod
    def at(content: str, start: int) -> OpText | None:
        """
        Returns the op that starts at position `start` of `content`, or None if its end
        cannot be found without parsing.
        """
        match = _OP.match(content, start)
        if match is None:
            return None
        pieces = _VALUE.split(match.group())
        key = "%".join(pieces[::2])
        # A search for plain text is much faster, and many ops have no scope.
        found = key.find(_SCOPE_START)
        scope = None if found < 0 else _SCOPE.search(key, found)
        if scope is None:
            return OpText(key, pieces[1::2], None, match.end())
        key = f"{key[: scope.start()]}{SCOPE}{key[scope.end() :]}"
        return OpText(key, pieces[1::2], scope.group(1), match.end())

    @cached_property
    def form(self) -> OpForm:
        """
        The op's text without names of values, types and callees, and without the scope
        (module path).
        """
        call = _CALL.match(self.key)
        start, end = (0, 0) if call is None else call.span(1)
        pieces = _TYPE_NAME.split(self.key[end:])
        return OpForm(
            f"{self.key[:start]}{'!'.join(pieces[::2])}",
            tuple(pieces[1::2]),
            self.key[start:end],
            any("}" in piece for piece in pieces[2::2]),
        )


@dataclass(frozen=True)
class OpForm:
    """
    The printed text that several ops have in common. The ops differ only in their
    types, their callees and the names of their values.
    """

    key: str
    types: tuple[str, ...]
    """The names of types in the op's text, in order."""
    callee: str
    """The name of the called function; empty if the op is not a call."""
    has_types_in_attributes: bool


@dataclass(frozen=True)
class KnownOp:
    """
    The facts that all ops with the same text share: everything except operands, results
    and scope (module path).
    """

    example: Operation
    operand_types: tuple[Attribute, ...]
    result_types: tuple[Attribute, ...]
    properties: Mapping[str, Attribute]

    @staticmethod
    def of(
        op: Operation, text: OpText, values: dict[str, tuple[SSAValue, ...]]
    ) -> KnownOp | None:
        """
        Returns the facts about `op`, an op that the parser has read from `text`.
        `values` maps names to all values defined so far. Returns None unless the names
        in the text are the names of the op's results and operands, each once and in
        order.
        """
        scope = op.attributes.get(SCOPE)
        named = [values.get(name, (None,))[0] for name in text.names]
        if (
            op.regions
            or op.successors
            or len(named) != len(op.results) + len(op.operands)
            or any(
                a is not b
                for a, b in zip(named, (*op.results, *op.operands), strict=False)
            )
            or (text.scope is not None and scope != StringAttr(text.scope))
        ):
            return None
        types = tuple(op.operand_types), tuple(op.result_types)
        return KnownOp(op, *types, op.properties)

    def renamed(
        self, before: OpForm, after: OpForm, types: Mapping[str, Attribute]
    ) -> KnownOp | None:
        """
        Derives the facts about a second op from the facts about this op, and returns
        them. The text of this op has the form `before`, and the text of the second op
        the form `after`. The two texts differ only in names of types and callees.
        `types` maps the names of types to types. Returns None if the facts are not
        certain without parsing.
        """
        if before.has_types_in_attributes or not types.keys() >= set(after.types):
            return None
        # The text has the types in order, some by name and some written in full.
        old = [types[name] for name in before.types]
        named = set(map(id, old))
        own = [*self.operand_types, *self.result_types]
        places = [i for i, type_ in enumerate(own) if id(type_) in named]
        if list(map(id, old)) != [id(own[i]) for i in places]:
            return None
        for i, name in zip(places, after.types, strict=True):
            own[i] = types[name]
        properties = self.properties
        if after.callee:
            properties = {"callee": SymbolRefAttr(after.callee)}
            if self.properties != {"callee": SymbolRefAttr(before.callee)}:
                return None
        count = len(self.operand_types)
        return KnownOp(self.example, tuple(own[:count]), tuple(own[count:]), properties)

    def read(
        self, text: OpText, values: dict[str, tuple[SSAValue, ...]]
    ) -> Operation | None:
        """
        Returns a new op for `text`, and adds its results to `values`. Returns None if a
        result's name is taken, if an operand is not yet defined, or if the type of an
        operand differs from the known type.
        """
        count = len(self.result_types)
        operands: list[SSAValue] = []
        for name, type_ in zip(text.names[count:], self.operand_types, strict=False):
            found = values.get(name)
            if found is None or found[0].type is not type_:
                return None
            operands.append(found[0])
        names = text.names[:count]
        if not values.keys().isdisjoint(names) or len(set(names)) < count:
            return None
        attributes = self.example.attributes
        if text.scope is not None:
            attributes = attributes | {SCOPE: SCOPE.attr(text.scope)}
        op = type(self.example).create(
            operands=operands,
            result_types=self.result_types,
            properties=self.properties,
            attributes=attributes,
            location=self.example.location,  # it is in the text of both
        )
        for name, result in zip(names, op.results, strict=True):
            values[name] = (result,)
            if is_name_hint(name):
                result.name_hint = name
        return op
