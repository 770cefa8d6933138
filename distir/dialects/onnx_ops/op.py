"""
The base class of ONNX operators as operations: inputs that may be omitted, attributes,
and the textual form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from onnx import helper
from onnx.defs import OpSchema
from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    opt_prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from distir.dialects.onnx_ops.attributes import (
    attribute_from_python,
    attribute_to_python,
    decoded,
    verify_attribute,
)

OMITTED = "omitted_inputs"


class OnnxOp(IRDLOperation):
    """
    An ONNX operator as its schema `SCHEMA` (an `onnx.defs.OpSchema`) describes it:
    inputs, attributes and results are in the schema's order. This class verifies the
    numbers of inputs and results and the kinds of attributes; `onnx.StandardOp`
    verifies the types.
    """

    SCHEMA: ClassVar[OpSchema]

    inputs = var_operand_def()
    outputs = var_result_def()
    omitted_inputs = opt_prop_def(DenseArrayBase)

    @classmethod
    def build_op(
        cls,
        inputs: Sequence[SSAValue | Operation | None],
        result_types: Sequence[Attribute],
        attributes: Mapping[str, Any] | None = None,
        discardable: Mapping[str, Attribute] | None = None,
    ) -> Self:
        """
        Returns a new operation. `inputs` may hold None for omitted optional inputs.
        `attributes` maps ONNX names to Python values or xDSL attributes; None values
        are left out. `discardable` holds attributes that ONNX does not define.
        """
        trimmed = list(inputs)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        omitted = [i for i, value in enumerate(trimmed) if value is None]
        properties = {
            name: value
            if isinstance(value, Attribute)
            else attribute_from_python(cls.SCHEMA.attributes[name], value)
            for name, value in (attributes or {}).items()
            if value is not None
        }
        if omitted:
            properties[OMITTED] = DenseArrayBase.from_list(i64, omitted)
        return cls.create(
            operands=[SSAValue.get(v) for v in trimmed if v is not None],
            result_types=list(result_types),
            properties=properties,
            attributes=dict(discardable or {}),
        )

    @property
    def input_values(self) -> list[SSAValue | None]:
        """The inputs in schema order, with None for omitted ones."""
        if OMITTED not in self.properties:
            return list(self.operands)
        absent = set(self.omitted)
        operands = iter(self.operands)
        count = len(self.operands) + len(absent)
        return [None if i in absent else next(operands) for i in range(count)]

    @property
    def omitted(self) -> tuple[int, ...]:
        """The schema positions of omitted optional inputs."""
        attr = self.properties.get(OMITTED)
        if not isinstance(attr, DenseArrayBase):
            return ()
        return tuple(int(i) for i in attr.get_values())

    def input(self, index: int) -> SSAValue | None:
        """
        Returns the input at schema position `index`, or None if the input is omitted.
        """
        values = self.input_values
        return values[index] if index < len(values) else None

    def operand_position(self, operand_index: int) -> int:
        """
        Returns the schema position of the operand with the index `operand_index`.
        Operand indices skip omitted inputs; schema positions count them.
        """
        if OMITTED not in self.properties:
            return operand_index
        present = [i for i, v in enumerate(self.input_values) if v is not None]
        return present[operand_index]

    def attribute(self, name: str, default: Any = None) -> Any:
        """
        Returns the value of the ONNX attribute `name` as Python data. If the attribute
        is not set, returns its default in the schema, or `default` if the schema has
        none.
        """
        attr = self.properties.get(name)
        if attr is not None:
            return attribute_to_python(attr)
        proto = self.SCHEMA.attributes[name].default_value
        if proto.type:
            return decoded(helper.get_attribute_value(proto))
        return default

    def onnx_attributes(self) -> dict[str, Any]:
        """The ONNX attributes that are set, by name, as Python data."""
        return {
            name: attribute_to_python(attr)
            for name, attr in self.properties.items()
            if name != OMITTED
        }

    def verify_(self) -> None:
        schema = self.SCHEMA
        count = len(self.operands) + len(self.omitted)
        if not schema.min_input <= count <= schema.max_input:
            raise VerifyException(
                f"{self.name} takes {_span(schema.min_input, schema.max_input)} inputs, "
                f"got {count}"
            )
        formals = schema.inputs
        for index in self.omitted:
            formal = formals[min(index, len(formals) - 1)]
            if formal.option == OpSchema.FormalParameterOption.Single:
                raise VerifyException(f"{self.name}: input {formal.name!r} is required")
        results = len(self.results)
        if not schema.min_output <= results <= schema.max_output:
            raise VerifyException(
                f"{self.name} has {_span(schema.min_output, schema.max_output)} "
                f"results, got {results}"
            )
        for name, attr in self.properties.items():
            if name != OMITTED:
                verify_attribute(self.name, schema.attributes[name], attr)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        omitted: list[int] = []
        count = 0

        def operand() -> Any:
            nonlocal count
            count += 1
            if parser.parse_optional_keyword("none") is not None:
                omitted.append(count - 1)
                return None
            return parser.parse_unresolved_operand()

        position = parser.pos
        unresolved = [
            o
            for o in parser.parse_comma_separated_list(parser.Delimiter.PAREN, operand)
            if o is not None
        ]
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        function_type = parser.parse_function_type()
        operands = parser.resolve_operands(
            unresolved, function_type.inputs.data, position
        )
        properties = {
            name: attributes.pop(name)
            for name in list(attributes)
            if name in cls.SCHEMA.attributes
        }
        if omitted:
            properties[OMITTED] = DenseArrayBase.from_list(i64, omitted)
        return cls.create(
            operands=operands,
            result_types=function_type.outputs.data,
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        def operand(value: SSAValue | None) -> None:
            if value is None:
                printer.print_string("none")
            else:
                printer.print_ssa_value(value)

        with printer.in_parens():
            printer.print_list(self.input_values, operand)
        shown = {k: v for k, v in self.properties.items() if k != OMITTED}
        printer.print_op_attributes(shown | self.attributes)
        printer.print_string(" : ")
        # `print_operation_type` would print the location, which xDSL prints after this.
        printer.print_function_type(self.operand_types, self.result_types)


def _span(low: int, high: int) -> str:
    if high >= 2**31 - 1:
        return f"at least {low}"
    return str(low) if low == high else f"{low} to {high}"
