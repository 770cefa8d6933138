"""What a parser remembers of the ops that it has read, by their text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import SCOPE

_OP = re.compile(
    r"(?:%[^=\n]*+= )?(?:onnx|train|collective|dist|func)\.(?!func\b)"
    r"[^\n]*+(?<=[\w>)])(?=\s*+(?:\}|%[^=\n]*+= |[a-zA-Z_]\w*+\.))"
)
"""
An op that fills a line and ends with a type, in front of something that cannot belong to it.
"""

_VALUE = re.compile(r"%([0-9]++|[a-zA-Z$._-][a-zA-Z0-9$._-]*+)")
_SCOPE = re.compile(rf'\b{SCOPE} = "([^"\\\n]*+)"')


@dataclass(frozen=True)
class OpText:
    """The text of an op: what is the same in many ops, and what differs between them."""

    key: str
    """The text, without the names of values and the scope."""
    names: list[str]
    """The names of the results and operands, in the order of the text."""
    scope: str | None
    end: int
    """The position behind the text."""

    @staticmethod
    def at(content: str, start: int) -> OpText | None:
        """The op that starts there; None where that is not clear without parsing it."""
        match = _OP.match(content, start)
        if match is None:
            return None
        pieces = _VALUE.split(match.group())
        key = "%".join(pieces[::2])
        scope = _SCOPE.search(key)
        if scope is None:
            return OpText(key, pieces[1::2], None, match.end())
        key = f"{key[: scope.start()]}{SCOPE}{key[scope.end() :]}"
        return OpText(key, pieces[1::2], scope.group(1), match.end())


@dataclass(frozen=True)
class KnownOp:
    """What an op is, but for its values and its scope."""

    example: Operation
    operand_types: tuple[Attribute, ...]
    result_types: tuple[Attribute, ...]

    @staticmethod
    def of(
        op: Operation, text: OpText, values: dict[str, tuple[SSAValue, ...]]
    ) -> KnownOp | None:
        """
        What is remembered of an op that was read from that text; None unless the values
        that the text names are its results and its operands, each once and in order.
        `values` are all that are defined, by name.
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
        return KnownOp(op, tuple(op.operand_types), tuple(op.result_types))

    def read(
        self, text: OpText, values: dict[str, tuple[SSAValue, ...]]
    ) -> Operation | None:
        """
        An op of the same text; None if a result has a name that is taken, or an operand is
        not defined yet or of another type. Adds its results to `values`.
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
            attributes = attributes | {SCOPE: StringAttr(text.scope)}
        op = type(self.example).create(
            operands=operands,
            result_types=self.result_types,
            properties=self.example.properties,
            attributes=attributes,
        )
        for name, result in zip(names, op.results, strict=True):
            values[name] = (result,)
            if not name[0].isdecimal():
                result.name_hint = name
        return op
