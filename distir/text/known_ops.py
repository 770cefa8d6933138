"""A parser's cache of the ops that it has read, keyed by their text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from xdsl.dialects.builtin import LocationAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist_attributes import BUCKET, SCOPE
from distir.program import is_name_hint

TENSOR = r'tensor<[^<>"]*+(?:<[^<>"]*+>)?+>'
TYPE = re.compile(rf"{TENSOR}|![a-zA-Z_][a-zA-Z0-9_$]*+(?![.-]|\s*<)", re.ASCII)
"""Matches a tensor type, or the name of a type."""

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
_SCOPE = re.compile(rf'(?<=[{{ ]){_SCOPE_START}([^"\\\n]*+)"')
_BUCKET_START = f"{BUCKET} = "
_BUCKET = re.compile(
    rf"(?<=[{{ ]){re.escape(_BUCKET_START)}([0-9]{{1,18}}) : i64(?=[,}}])"
)
_TYPE_NAME = re.compile(r"(![a-zA-Z_][a-zA-Z0-9_$]*+)(?![.-]|\s*<)", re.ASCII)

_VALUES = r"(?:%(?:, %)*+)"
_TYPES = rf"(?:(?:{TYPE.pattern})(?:, (?:{TYPE.pattern}))*+)"
_CALL = re.compile(
    rf"(?:({_VALUES}) = )?func\.call @([a-zA-Z_][a-zA-Z0-9_]*+)\(({_VALUES}?)\)"
    rf"(?: \{{{SCOPE}\n\}})? : \(({_TYPES}?)\) -> (?:\(({_TYPES}?)\)|({TYPE.pattern}))",
    re.ASCII,
)
"""
Matches the key of a call: results, callee, operands, and the types of operands and
results.
"""
_RETURN = re.compile(rf"func\.return ({_VALUES}) : ({_TYPES})", re.ASCII)
"""Matches the key of a return: operands and their types."""


@dataclass(frozen=True)
class OpText:
    """
    The text of an op, divided into a part that the op has in common with many ops and
    the parts in which the ops differ.
    """

    key: str
    """The text of the op without the names of values, the scope and the bucket."""
    names: list[str]
    """The names of results and operands, in the order of the text."""
    end: int
    """The position in the file after the op's text."""
    scope: str | None = None
    """The op's module path."""
    bucket: int | None = None
    """The number of the message in which a collective travels."""

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
        key, scope = _cut(key, _SCOPE_START, _SCOPE, SCOPE)
        key, bucket = _cut(key, _BUCKET_START, _BUCKET, BUCKET)
        number = None if bucket is None else int(bucket)
        return OpText(key, pieces[1::2], match.end(), scope, number)

    @cached_property
    def form(self) -> OpForm:
        """
        The op's text without names of values and types, and without the scope and the
        bucket.
        """
        pieces = _TYPE_NAME.split(self.key)
        return OpForm(
            "!".join(pieces[::2]),
            tuple(pieces[1::2]),
            any("}" in piece for piece in pieces[2::2]),
        )


def _cut(
    key: str, start: str, pattern: re.Pattern[str], name: str
) -> tuple[str, str | None]:
    """
    Returns the text `key` with `name` and a line break, which no text of an op has, in
    place of the attribute that `pattern` matches, and the attribute's value. `start` is the beginning of its text. If the text does
    not have the attribute exactly once, returns `key` and None.
    """
    # A search for plain text is much faster, and many ops do not have the attribute.
    first = key.find(start)
    if first < 0 or key.find(start, first + 1) >= 0:
        return key, None
    found = pattern.match(key, first)
    if found is None:
        return key, None
    return f"{key[:first]}{name}\n{key[found.end() :]}", found[1]


@dataclass(frozen=True)
class OpForm:
    """
    The printed text that several ops have in common. The ops differ only in their types
    and the names of their values.
    """

    key: str
    types: tuple[str, ...]
    """The names of types in the op's text, in order."""
    has_types_in_attributes: bool


@dataclass(frozen=True)
class KnownOp:
    """
    The facts that all ops with the same text share: everything except operands,
    results, scope (module path) and bucket.
    """

    kind: type[Operation]
    operand_types: list[Attribute]
    result_types: list[Attribute]
    properties: Mapping[str, Attribute]
    attributes: Mapping[str, Attribute]
    location: LocationAttr | None = None

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
        named = [values.get(name, (None,))[0] for name in text.names]
        if (
            op.regions
            or op.successors
            or len(named) != len(op.results) + len(op.operands)
            or any(
                a is not b
                for a, b in zip(named, (*op.results, *op.operands), strict=True)
            )
            or _varied(text) != {n: op.attributes.get(n) for n in _varied(text)}
        ):
            return None
        return KnownOp(
            type(op),
            list(op.operand_types),
            list(op.result_types),
            op.properties,
            op.attributes,
            op.location,  # it is in the text of both
        )

    @staticmethod
    def of_call(
        text: OpText, type_of: Callable[[str], Attribute | None]
    ) -> KnownOp | None:
        """
        Returns the facts about a call of a function or a return, which may have
        thousands of operands, from its text. `type_of` maps the text of a type to the
        type, or to None if the type is unknown. Returns None if the text can only be
        read by xDSL.
        """
        call = _CALL.fullmatch(text.key)
        if call is not None:
            results, callee, operands, before, after, single = call.groups("")
            kind, properties = CallOp, {"callee": SymbolRefAttr(callee)}
        else:
            found = _RETURN.fullmatch(text.key)
            if found is None:
                return None
            operands, before = found.groups()
            results = after = single = ""
            kind, properties = ReturnOp, dict[str, Attribute]()
        types = [
            [type_of(each) for each in TYPE.findall(texts)]
            for texts in (before, after or single)
        ]
        known = [[each for each in some if each is not None] for some in types]
        counts = [operands.count("%"), results.count("%")]
        if known != types or list(map(len, known)) != counts:
            return None
        return KnownOp(kind, known[0], known[1], properties, {})

    def renamed(
        self, before: OpForm, after: OpForm, types: Mapping[str, Attribute]
    ) -> KnownOp | None:
        """
        Derives the facts about a second op from the facts about this op, and returns
        them. The text of this op has the form `before`, and the text of the second op
        the form `after`. The two texts differ only in names of types. `types` maps the
        names of types to types. Returns None if the facts are not certain without
        parsing.
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
        count = len(self.operand_types)
        return replace(self, operand_types=own[:count], result_types=own[count:])

    def read(
        self, text: OpText, values: dict[str, tuple[SSAValue, ...]]
    ) -> Operation | None:
        """
        Returns a new op for `text`, and adds its results to `values`. Returns None if a
        result's name is taken, if an operand is not yet defined, or if the type of an
        operand differs from the known type.
        """
        count = len(self.result_types)
        names = text.names[:count]
        try:
            operands = [values[name][0] for name in text.names[count:]]
        except KeyError:
            return None
        if [value.type for value in operands] != self.operand_types:
            return None
        if not values.keys().isdisjoint(names) or len(set(names)) < count:
            return None
        op = self.kind.create(
            operands=operands,
            result_types=self.result_types,
            properties=self.properties,
            attributes={**self.attributes, **_varied(text)},
            location=self.location,
        )
        for name, result in zip(names, op.results, strict=True):
            values[name] = (result,)
            # Names of digits are the most frequent ones, and no hints.
            if not name[0].isdigit() and is_name_hint(name):
                result.name_hint = name
        return op


def _varied(text: OpText) -> dict[str, Attribute]:
    """Returns the attributes in which ops of the same key differ."""
    found: dict[str, Attribute] = {}
    if text.scope is not None:
        found[SCOPE] = SCOPE.attr(text.scope)
    if text.bucket is not None:
        found[BUCKET] = BUCKET.attr(text.bucket)
    return found
