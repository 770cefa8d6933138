"""
Parses the pretty form of StableHLO ops, in which the text between the name and the
types of an op has a syntax of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    FunctionType,
    IntegerAttr,
    StringAttr,
    TensorType,
    UnregisteredOp,
    i1,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region
from xdsl.parser import Parser, UnresolvedOperand

Properties = dict[str, Attribute]
Reader = Callable[[str, type[Operation], Parser], Operation]

PRETTY: dict[str, Reader] = {}
"""The parsers of ops with a form of their own, by op name."""

CLAUSES = {
    ("stablehlo.broadcast_in_dim", "dims"): "broadcast_dimensions",
    ("stablehlo.transpose", "dims"): "permutation",
    ("stablehlo.reverse", "dims"): "dimensions",
    ("stablehlo.dynamic_slice", "sizes"): "slice_sizes",
    ("stablehlo.pad", "low"): "edge_padding_low",
    ("stablehlo.pad", "high"): "edge_padding_high",
    ("stablehlo.pad", "interior"): "interior_padding",
    ("stablehlo.concatenate", "dim"): "dimension",
    ("stablehlo.iota", "dim"): "iota_dimension",
    ("chlo.top_k", "k"): "k",
}
"""The property that a clause `word = value` sets, by op name and word."""

_IGNORED = ("precision", "algorithm")


def reader(*names: str) -> Callable[[Reader], Reader]:
    """
    Returns a decorator that registers a function as the parser of the pretty form of
    the ops `names`.
    """

    def add(function: Reader) -> Reader:
        PRETTY.update(dict.fromkeys(names, function))
        return function

    return add


def parse_pretty(name: str, kind: type[Operation], parser: Parser) -> Operation:
    """
    Parses the rest of an op of class `kind`, after the op's name, and returns the op.
    If no parser is registered for `name`, the text has operands and clauses `word =
    value`, then attributes and types.
    """
    return PRETTY.get(name, _plain)(name, kind, parser)


def _plain(name: str, kind: type[Operation], parser: Parser) -> Operation:
    operands: list[UnresolvedOperand] = []
    properties: Properties = {}
    brackets = parser.parse_optional_punctuation("(") is not None
    while True:
        operand = parser.parse_optional_unresolved_operand()
        if operand is not None:
            operands.append(operand)
        elif (word := parser.parse_optional_identifier()) is not None:
            _clause(name, word, parser, properties)
        if parser.parse_optional_punctuation(",") is None:
            break
    if brackets:
        parser.parse_punctuation(")")
    return _finish(kind, parser, operands, properties)


def _clause(name: str, word: str, parser: Parser, properties: Properties) -> None:
    parser.parse_punctuation("=")
    if word in _IGNORED:
        _skip_list(parser)
        return
    if word == "format":
        # A format is one word: e8m23 has 8 bits of exponent and 23 of mantissa.
        bits = re.findall(r"\d+", parser.parse_identifier())
        names = ("exponent_bits", "mantissa_bits")
        for key, count in zip(names, bits, strict=True):
            properties[key] = IntegerAttr(int(count), i64)
        return
    key = CLAUSES.get((name, word))
    if key is None:
        parser.raise_error(f"{name} has no part {word!r}")
    if parser.parse_optional_punctuation("[") is None:
        properties[key] = IntegerAttr(parser.parse_integer(), i64)
        return
    properties[key] = array(_integers_until_bracket(parser))


def array(values: Sequence[int]) -> DenseArrayBase[Any]:
    """Returns the attribute `array<i64: ...>` that holds `values`."""
    return DenseArrayBase.from_list(i64, values)


def _skip_list(parser: Parser) -> None:
    parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_identifier)


def _integers_until_bracket(parser: Parser) -> list[int]:
    found: list[int] = []
    while parser.parse_optional_punctuation("]") is None:
        found.append(parser.parse_integer())
        parser.parse_optional_punctuation(",")
    return found


def integers(parser: Parser) -> list[int]:
    """Parses a list of integers, such as `[1, 2]`."""
    parser.parse_punctuation("[")
    return _integers_until_bracket(parser)


def _finish(
    kind: type[Operation],
    parser: Parser,
    operands: Sequence[UnresolvedOperand],
    properties: Properties,
    regions: Sequence[Region] = (),
) -> Operation:
    """Parses the attributes and types of an op, and returns the op."""
    attributes = parser.parse_optional_attr_dict()
    position = parser.pos
    parser.parse_punctuation(":")
    given, results = _types(parser, len(operands))
    values = parser.resolve_operands(operands, given, position)
    return kind.create(
        operands=values,
        result_types=results,
        properties=properties,
        attributes=attributes,
        regions=regions,
    )


def _types(
    parser: Parser, count: int
) -> tuple[Sequence[Attribute], Sequence[Attribute]]:
    """
    Parses the types of `count` operands and of the results. Possible forms are a
    function type, one type for all values, `a, b -> c`, and one list for both operands
    and results.
    """
    found = parser.parse_optional_function_type()
    if isinstance(found, FunctionType):
        return found.inputs.data, found.outputs.data
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    if parser.parse_optional_punctuation("->") is not None:
        if parser.parse_optional_punctuation("(") is None:
            return types, [parser.parse_type()]
        outputs = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
        parser.parse_punctuation(")")
        return types, outputs
    if len(types) == 1:
        return types * count, types
    return types, types


@reader("stablehlo.return", "sdy.return")
def _return(name: str, kind: type[Operation], parser: Parser) -> Operation:
    operands: list[UnresolvedOperand] = []
    while (operand := parser.parse_optional_unresolved_operand()) is not None:
        operands.append(operand)
        if parser.parse_optional_punctuation(",") is None:
            break
    attributes = parser.parse_optional_attr_dict()
    types: Sequence[Attribute] = ()
    if operands:
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
    values = parser.resolve_operands(operands, types, parser.pos)
    return kind.create(operands=values, attributes=attributes)


@reader("stablehlo.constant")
def _constant(name: str, kind: type[Operation], parser: Parser) -> Operation:
    attributes = parser.parse_optional_attr_dict()
    value = parser.parse_attribute()
    return kind.create(
        result_types=[value.type],  # pyright: ignore[reportAttributeAccessIssue]
        properties={"value": value},
        attributes=attributes,
    )


@reader("stablehlo.compare")
def _compare(name: str, kind: type[Operation], parser: Parser) -> Operation:
    direction = parser.parse_identifier()
    parser.parse_punctuation(",")
    left = parser.parse_unresolved_operand()
    parser.parse_punctuation(",")
    right = parser.parse_unresolved_operand()
    properties: Properties = {"comparison_direction": StringAttr(direction)}
    if parser.parse_optional_punctuation(",") is not None:
        properties["compare_type"] = StringAttr(parser.parse_identifier())
    return _finish(kind, parser, [left, right], properties)


@reader("stablehlo.select")
def _select(name: str, kind: type[Operation], parser: Parser) -> Operation:
    operands = parser.parse_comma_separated_list(
        parser.Delimiter.NONE, parser.parse_unresolved_operand
    )
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    given, results = _types(parser, 3)
    if len(given) == 2:
        given, results = [given[0], given[1], given[1]], [given[1]]
    values = parser.resolve_operands(operands, given, parser.pos)
    return kind.create(operands=values, result_types=results, attributes=attributes)


@reader("stablehlo.slice")
def _slice(name: str, kind: type[Operation], parser: Parser) -> Operation:
    operand = parser.parse_unresolved_operand()
    parser.parse_punctuation("[")
    bounds: list[tuple[int, int, int]] = []
    while parser.parse_optional_punctuation("]") is None:
        start = parser.parse_integer()
        parser.parse_punctuation(":")
        limit, stride = parser.parse_integer(), 1
        if parser.parse_optional_punctuation(":") is not None:
            stride = parser.parse_integer()
        bounds.append((start, limit, stride))
        parser.parse_optional_punctuation(",")
    names = ("start_indices", "limit_indices", "strides")
    properties: Properties = {
        key: array([bound[i] for bound in bounds]) for i, key in enumerate(names)
    }
    return _finish(kind, parser, [operand], properties)


@reader("stablehlo.dot_general")
def _dot_general(name: str, kind: type[Operation], parser: Parser) -> Operation:
    operands = [parser.parse_unresolved_operand()]
    parser.parse_punctuation(",")
    operands.append(parser.parse_unresolved_operand())
    pairs = {"batching": ([], []), "contracting": ([], [])}
    while parser.parse_optional_punctuation(",") is not None:
        word = parser.parse_identifier()
        parser.parse_punctuation("=")
        if word in _IGNORED:
            _skip_list(parser) if word == "precision" else _skip_angles(parser)
            continue
        left = integers(parser)
        parser.parse_characters("x")
        pairs[word.removesuffix("_dims")] = (left, integers(parser))
    text = ", ".join(
        f"{side}_{key}_dimensions = {values}"
        for key, both in pairs.items()
        for side, values in zip(("lhs", "rhs"), both, strict=True)
    )
    return _finish(kind, parser, operands, {"dot_dimension_numbers": StringAttr(text)})


def _skip_angles(parser: Parser) -> None:
    parser.parse_punctuation("<")
    while parser.parse_optional_punctuation(">") is None:
        parser._consume_token()  # pyright: ignore[reportPrivateUsage]


@reader("stablehlo.reduce")
def _reduce(name: str, kind: type[Operation], parser: Parser) -> Operation:
    values: list[UnresolvedOperand] = []
    starts: list[UnresolvedOperand] = []
    while parser.parse_optional_punctuation("(") is not None:
        values.append(parser.parse_unresolved_operand())
        parser.parse_keyword("init")
        parser.parse_punctuation(":")
        starts.append(parser.parse_unresolved_operand())
        parser.parse_punctuation(")")
        parser.parse_optional_punctuation(",")
    body = None
    if parser.parse_optional_keyword("applies") is not None:
        body = parser.parse_identifier()
    parser.parse_keyword("across")
    parser.parse_keyword("dimensions")
    parser.parse_punctuation("=")
    dims = integers(parser)
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    given, results = _types(parser, 2 * len(values))
    if body is None:
        region = _reducer(parser, len(values))
    else:
        region = _one_op_region(body, kind, given[len(values)])
    return kind.create(
        operands=parser.resolve_operands([*values, *starts], given, parser.pos),
        result_types=results,
        properties={"dimensions": array(dims)},
        attributes=attributes,
        regions=[region],
    )


def _reducer(parser: Parser, count: int) -> Region:
    """
    Parses `reducer(%a: t, %b: t) (%c: t, %d: t) {...}` and returns the region. Each of
    the `count` reduced values has a pair of arguments.
    """
    parser.parse_keyword("reducer")
    firsts: list[Parser.Argument] = []
    seconds: list[Parser.Argument] = []
    for _ in range(count):
        parser.parse_punctuation("(")
        firsts.append(_argument(parser))
        parser.parse_punctuation(",")
        seconds.append(_argument(parser))
        parser.parse_punctuation(")")
    return parser.parse_region([*firsts, *seconds])


def _argument(parser: Parser) -> Parser.Argument:
    found = parser.parse_argument()
    found.location = parser.parse_optional_location()
    return found


def _one_op_region(name: str, kind: type[Operation], scalar: Attribute) -> Region:
    """
    Returns the region of a reduction by one op called `name`. `scalar` is the type of
    the op's operands and result.
    """
    block = Block(arg_types=[scalar, scalar])
    op = hlo_op(name).create(operands=list(block.args), result_types=[scalar])
    block.add_ops([op, hlo_op("stablehlo.return").create(operands=op.results)])
    return Region(block)


@reader("stablehlo.while")
def _while(name: str, kind: type[Operation], parser: Parser) -> Operation:
    arguments: list[UnresolvedOperand] = []
    operands: list[UnresolvedOperand] = []
    parser.parse_punctuation("(")
    while parser.parse_optional_punctuation(")") is None:
        arguments.append(parser.parse_unresolved_operand())
        parser.parse_punctuation("=")
        operands.append(parser.parse_unresolved_operand())
        parser.parse_optional_punctuation(",")
    position = parser.pos
    types: Sequence[Attribute] = ()
    if operands:
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
    attributes = parser.parse_optional_attr_dict_with_keyword() or None
    regions: list[Region] = []
    for word in ("cond", "do"):
        parser.parse_keyword(word)
        own = [
            parser.Argument(argument.span, type_)
            for argument, type_ in zip(arguments, types, strict=True)
        ]
        regions.append(parser.parse_region(own))
    return kind.create(
        operands=parser.resolve_operands(operands, types, position),
        result_types=types,
        attributes=dict(attributes.data) if attributes else {},
        regions=regions,
    )


@reader("stablehlo.convolution")
def _convolution(name: str, kind: type[Operation], parser: Parser) -> Operation:
    parser.parse_punctuation("(")
    operands = [parser.parse_unresolved_operand()]
    parser.parse_punctuation(",")
    operands.append(parser.parse_unresolved_operand())
    parser.parse_punctuation(")")
    _word(parser, "dim_numbers")
    numbers = StringAttr(_until(parser, ">") + ">" + _until(parser, "]") + "]")
    parser.parse_punctuation(",")
    _word(parser, "window")
    parser.parse_punctuation("{")
    properties: Properties = {"dimension_numbers": numbers}
    names = {
        "stride": "window_strides",
        "pad": "padding",
        "lhs_dilate": "lhs_dilation",
        "rhs_dilate": "rhs_dilation",
        "reverse": "window_reversal",
    }
    while parser.parse_optional_punctuation("}") is None:
        word = parser.parse_identifier()
        parser.parse_punctuation("=")
        if word == "pad":
            pairs = parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, lambda: integers(parser)
            )
            properties["padding"] = ArrayAttr([array(pair) for pair in pairs])
        elif word == "reverse":
            flags = parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, parser.parse_boolean
            )
            properties[names[word]] = DenseArrayBase.from_list(i1, flags)
        else:
            properties[names[word]] = array(integers(parser))
        parser.parse_optional_punctuation(",")
    return _finish(kind, parser, operands, properties)


def _word(parser: Parser, word: str) -> None:
    parser.parse_keyword(word)
    parser.parse_punctuation("=")


def _until(parser: Parser, end: str) -> str:
    """
    Returns the text before the next `end`, and moves the parser to the position after
    `end`.
    """
    content = parser._current_token.span.input.content  # pyright: ignore[reportPrivateUsage]
    position = content.index(end, parser.pos)
    text = content[parser.pos : position]
    parser._resume_from(position + 1)  # pyright: ignore[reportPrivateUsage]
    return text


@reader("stablehlo.custom_call")
def _custom_call(name: str, kind: type[Operation], parser: Parser) -> Operation:
    target = parser.parse_symbol_name()
    operands = parser.parse_comma_separated_list(
        parser.Delimiter.PAREN, parser.parse_unresolved_operand
    )
    return _finish(kind, parser, operands, {"call_target_name": target})


@reader("stablehlo.composite")
def _composite(name: str, kind: type[Operation], parser: Parser) -> Operation:
    target = StringAttr(parser.parse_str_literal())
    operands = parser.parse_optional_undelimited_comma_separated_list(
        parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
    )
    return _finish(kind, parser, operands or [], {"name": target})


@reader("sdy.mesh")
def _mesh(name: str, kind: type[Operation], parser: Parser) -> Operation:
    symbol = parser.parse_symbol_name()
    parser.parse_punctuation("=")
    text = _until(parser, ">")
    return kind.create(
        properties={"sym_name": symbol, "mesh": StringAttr(text[1:])},
        attributes=parser.parse_optional_attr_dict(),
    )


@reader("sdy.sharding_constraint", "sdy.reshard")
def _sharding_constraint(name: str, kind: type[Operation], parser: Parser) -> Operation:
    operand = parser.parse_unresolved_operand()
    text = StringAttr(_until(parser, ">").removeprefix("<"))
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    type_ = parser.parse_type()
    assert isinstance(type_, TensorType)
    values = parser.resolve_operands([operand], [type_], parser.pos)
    return kind.create(
        operands=values,
        result_types=[type_],
        properties={"sharding": text},
        attributes=attributes,
    )


@reader("sdy.manual_computation")
def _manual_computation(name: str, kind: type[Operation], parser: Parser) -> Operation:
    parser.raise_error(
        f"{name} is shard_map, which computes on each device by itself, so that no layout "
        f"can be chosen for it; leave it out of the function that is imported"
    )


@cache
def hlo_op(name: str) -> type[Operation]:
    """Returns a class of ops called `name` whose pretty form can be parsed."""
    base = UnregisteredOp.with_name(name)

    class HloOp(base):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
        @classmethod
        def dialect_name(cls) -> str:
            return name.partition(".")[0]

        @classmethod
        def parse(cls, parser: Parser) -> Any:
            return parse_pretty(name, cls, parser)

    return HloOp


def op_name(op: Operation) -> str:
    """Returns the name of an op, even if its dialect is not registered."""
    return op.op_name.data if isinstance(op, UnregisteredOp) else op.name
