"""
The registry of emitters. An emitter gives the PyTorch expression for one op of a
per-rank program.

```python
@torch_emitter("toy.scale")
def scale(call: Call) -> str:
    return call.write("{0} * {factor}")

torch_templates({"scale": "{0} * {factor}"}, "toy")  # the same
```

An op class that derives from `OpFacts` needs no registration: its template is its class
variable `TORCH`.

An emitter returns one Python expression: a tensor, or a tuple of tensors for an op with
several results. It may also return a list with one expression per result, each on a
line of its own. The expression may mention `torch`, `F` (torch.nn.functional), `self`,
and the helper modules that `call.helper` returns. Text from the IR must go through
`repr`, as in `Call.write`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import (
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    UnitAttr,
)
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.constants import draws_random_numbers
from distir.dialects.onnx_ops.attributes import decimal
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.torch_calls import CALLS
from distir.dialects.onnx_ops.traits import SIGNLESS
from distir.dialects.onnx_ops.values import constant_value, onnx_element_type
from distir.dialects.op_facts import OpFacts
from distir.dialects.registries import Registry, name_of
from distir.errors import DistIRError
from distir.program import describe

DTYPES: dict[str, str] = {
    "FLOAT": "torch.float32",
    "DOUBLE": "torch.float64",
    "FLOAT16": "torch.float16",
    "BFLOAT16": "torch.bfloat16",
    "BOOL": "torch.bool",
    "INT8": "torch.int8",
    "INT16": "torch.int16",
    "INT32": "torch.int32",
    "INT64": "torch.int64",
    "UINT8": "torch.uint8",
    "UINT16": "torch.uint16",
    "UINT32": "torch.uint32",
    "UINT64": "torch.uint64",
    "COMPLEX64": "torch.complex64",
    "COMPLEX128": "torch.complex128",
    "FLOAT8E4M3FN": "torch.float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "torch.float8_e4m3fnuz",
    "FLOAT8E5M2": "torch.float8_e5m2",
    "FLOAT8E5M2FNUZ": "torch.float8_e5m2fnuz",
    "FLOAT8E8M0": "torch.float8_e8m0fnu",
    # Each is stored in an element of a wider type.
    "INT4": "torch.int8",
    "UINT4": "torch.uint8",
    "INT2": "torch.int8",
    "UINT2": "torch.uint8",
    "FLOAT4E2M1": "torch.float32",
}
"""The torch dtype of each ONNX element type that has one."""

NARROW: dict[str, tuple[int, int]] = {
    "INT4": (-8, 7),
    "UINT4": (0, 15),
    "INT2": (-2, 1),
    "UINT2": (0, 3),
}
"""The least and the largest value of each integer type of less than a byte."""


class NoLowering(DistIRError):
    """Raised for an op, or a variant of an op, without a torch lowering."""


def torch_dtype(onnx_type: int, what: str) -> str:
    """
    Returns the torch dtype, as source text, of the `TensorProto.DataType` `onnx_type`.
    Raises NoLowering, with a message about `what`, if PyTorch has no such type.
    """
    from onnx import TensorProto

    name = TensorProto.DataType.Name(onnx_type)
    if name not in DTYPES:
        raise NoLowering(
            f"{what} has no torch lowering for elements of type {name.lower()}"
        )
    return DTYPES[name]


class ValueNames(Protocol):
    """
    The names of a program's values, process groups and functions in the generated
    source.
    """

    def name(self, value: SSAValue) -> str:
        """Returns the Python variable (or attribute) that holds a value."""
        ...

    def helper(self, module: str) -> str:
        """
        Imports the helper module `module` into the generated source, and returns its
        name there.
        """
        ...

    def group(self, op: Operation) -> str:
        """Returns the expression for the process group of a per-rank collective."""
        ...

    def number(self, value: int) -> str:
        """
        Returns an expression for the integer `value`, such as a peer process, which may
        differ between ranks.
        """
        ...

    def listed(self, values: Sequence[SSAValue]) -> list[str]:
        """
        Returns the items of a Python list of `values`, as source text. Values that
        follow a pattern can share one item, a generator, so there may be fewer items
        than values.
        """
        ...


def known_constant(value: SSAValue | None) -> npt.NDArray[Any] | None:
    """Returns the array of `value` if an `onnx.Constant` makes it, else None."""
    if value is None:
        return None
    owner = value.owner
    if isinstance(owner, Operation) and owner.name == "onnx.Constant":
        attr = owner.properties.get("value")
        if attr is not None:
            return _decoded(attr)
    return None


_DECODED: dict[int, tuple[Attribute, npt.NDArray[Any]]] = {}
"""
The most recent constants, by the identity of their attributes. The attributes, which
ranks share, are kept alive so that their identities stay valid.
"""


def _decoded(attr: Attribute) -> npt.NDArray[Any]:
    found = _DECODED.get(id(attr))
    if found is None:
        if len(_DECODED) >= 256:
            _DECODED.clear()
        array = constant_value(attr)
        array.flags.writeable = False
        found = _DECODED[id(attr)] = (attr, array)
    return found[1]


@dataclass
class Call:
    """
    An op, with methods that return the texts of its PyTorch expression. Operands are
    numbered as in the op's schema.
    """

    op: Operation
    names: ValueNames

    def value(self, index: int) -> SSAValue | None:
        """Returns operand `index`, or None if the operand is omitted."""
        if isinstance(self.op, OnnxOp):
            return self.op.input(index)
        return self.op.operands[index] if index < len(self.op.operands) else None

    @property
    def count(self) -> int:
        """The number of operands, including omitted operands."""
        if isinstance(self.op, OnnxOp):
            return len(self.op.input_values)
        return len(self.op.operands)

    def has(self, index: int) -> bool:
        """Whether operand `index` is not omitted."""
        return self.value(index) is not None

    def operand(self, index: int) -> str:
        """
        Returns the variable of operand `index`, or the text `None` if the operand is
        omitted.
        """
        value = self.value(index)
        return "None" if value is None else self.names.name(value)

    def operands(self) -> list[str]:
        """Returns the variables of all operands."""
        return [self.operand(i) for i in range(self.count)]

    def helper(self, module: str) -> str:
        """
        Returns the name of helper module `module` in the source, and adds the module to
        the package.
        """
        return self.names.helper(module)

    def write(self, template: str, module: str = "", **texts: str) -> str:
        """
        Returns an expression: `template` with its fields filled in. With `module`, the
        expression is a call of a function of that helper module. Fields are:

        - `{0}`: operand 0; `{0:integers}`: the result of the method `integers` for
          operand 0; `{*}`: all operands, separated by commas;
        - `{axis}`: the value of the attribute `axis`; `{axis:flag}`: the result of the
          method `flag` (True or False), or of another method of this class, for that
          attribute;
        - `{result:dtype}`: the result of the method `result_dtype`;
        - `{op}`: the name of the op without its dialect; `{op.dimension}`: the property
          `dimension` of its class;
        - `{name}`: the text in `texts` under that name.
        """
        written = _Fields(self).vformat(template, (), texts)
        return f"{self.helper(module)}.{written}" if module else written

    def like_op(self, module: str, arguments: Sequence[str]) -> str:
        """
        Returns a call of the function in helper module `module` that has the name of
        the op.
        """
        written = self.write("{op}({arguments})", arguments=", ".join(arguments))
        return f"{self.helper(module)}.{written}"

    def first(self, written: str) -> str:
        """
        Returns an expression for the results of this op. `written` is an expression for
        all results that an op of this kind can have; this op may have only the first of
        these results.
        """
        count = len(self.op.results)
        return f"{written}[0]" if count == 1 else f"{written}[:{count}]"

    def fail(self, why: str) -> NoLowering:
        """
        Returns an error with the message that the op has no lowering because of `why`.
        """
        return NoLowering(f"{describe(self.op)} has no torch lowering: {why}")

    # Attributes and types

    def attribute(self, name: str, default: Any = None) -> Any:
        """
        Returns the value of attribute `name`. If the attribute is absent, returns the
        default of the operator's schema for an ONNX operator, else `default`.
        """
        if isinstance(self.op, OnnxOp):
            return self.op.attribute(name, default)
        match self.op.properties.get(name):
            case IntegerAttr() | FloatAttr() as number:
                return number.value.data
            case StringAttr() as text:
                return text.data
            case UnitAttr():
                return True
            case _:
                return default

    def decimal(self, name: str) -> str:
        """
        Returns float attribute `name` with the fewest decimals that give the same
        number, in double precision if operand 0 is double, else in single precision.
        """
        value = self.attribute(name)
        exact = "DOUBLE" in (self.element(0) if self.has(0) else "")
        return repr(float(value)) if exact else str(decimal(value))

    def flag(self, name: str) -> str:
        """Returns the integer attribute `name` as the text `True` or `False`."""
        return repr(bool(self.attribute(name)))

    def has_attribute(self, name: str) -> bool:
        return name in self.op.properties

    def type_of(self, index: int) -> TensorType[Any]:
        """
        Returns the tensor type of operand `index`. Raises NoLowering if the operand is
        omitted or its rank is unknown.
        """
        value = self.value(index)
        if value is None or not isinstance(value.type, TensorType):
            raise self.fail(f"operand {index} is not a tensor of known rank")
        return value.type

    def rank(self, index: int = 0) -> int:
        """Returns the number of dimensions of an operand."""
        return self.type_of(index).get_num_dims()

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Returns the local shape of operand `index`, with -1 for unknown sizes."""
        return self.type_of(index).get_shape()

    def is_ranked(self, index: int) -> bool:
        """Whether operand `index` is given and its number of dimensions is known."""
        value = self.value(index)
        return value is not None and isinstance(value.type, TensorType)

    def element(self, index: int = 0) -> str:
        """
        Returns the ONNX name of an operand's element type, such as `FLOAT16`. Raises
        NoLowering if the operand is omitted or is not a tensor.
        """
        value = self.value(index)
        if value is None:
            raise self.fail(f"operand {index} is missing")
        try:
            return element_name(element_of(value.type))
        except ValueError as error:
            raise self.fail(f"operand {index} is not a tensor") from error

    def result_type(self, index: int = 0) -> TensorType[Any]:
        """
        Returns the tensor type of result `index`. Raises NoLowering if its rank is
        unknown.
        """
        type_ = self.op.results[index].type
        if not isinstance(type_, TensorType):
            raise self.fail(f"result {index} is not a tensor of known rank")
        return type_

    def result_shape(self, index: int = 0) -> tuple[int, ...] | None:
        """Returns the local shape of result `index`, or None if any size is unknown."""
        type_ = self.op.results[index].type
        if not isinstance(type_, TensorType) or min(type_.get_shape(), default=0) < 0:
            return None
        return type_.get_shape()

    def result_dtype(self, index: int = 0) -> str:
        """Returns the torch dtype of a result, as source text."""
        return self.dtype(onnx_element_type(element_of(self.op.results[index].type)))

    def result_element(self) -> str:
        """Returns the ONNX name of the first result's element type."""
        return element_name(element_of(self.op.results[0].type))

    def dtype(self, onnx_type: int) -> str:
        """
        Returns the torch dtype, as source text, of the ONNX element type with code
        `onnx_type`. Raises NoLowering if PyTorch has no such type.
        """
        return torch_dtype(onnx_type, describe(self.op))

    # Known values

    def constant(self, index: int) -> npt.NDArray[Any] | None:
        """Returns the array of operand `index` if it is a constant, else None."""
        return known_constant(self.value(index))

    def integers(self, index: int) -> str:
        """
        Returns an expression for the list of Python integers in operand `index`. For a
        constant, the expression is a literal; for an omitted operand, it is `None`.
        """
        known = self.constant(index)
        if known is not None:
            return repr([int(v) for v in known.reshape(-1)])
        if not self.has(index):
            return "None"
        return f"{self.operand(index)}.reshape(-1).tolist()"

    def integer(self, index: int) -> str:
        """
        Returns an expression for the single integer in operand `index`. For a constant,
        the expression is a literal; for an omitted operand, it is `None`.
        """
        known = self.constant(index)
        if known is not None:
            return repr(int(known.reshape(-1)[0]))
        return f"int({self.operand(index)})" if self.has(index) else "None"

    def number(self, index: int) -> str:
        """
        Returns an expression for the single Python number in operand `index`. For a
        constant, the expression is a literal.
        """
        known = self.constant(index)
        if known is not None:
            return literal(known)
        return f"{self.operand(index)}.item()"

    def scalar(self, index: int) -> str:
        """
        Returns operand `index` of an elementwise op as text: a Python number if the
        operand is a constant of one element that broadcasts without adding dimensions,
        else its variable.
        """
        known = self.constant(index)
        if known is None or known.size != 1 or known.dtype.kind not in "fiu":
            return self.operand(index)
        others: list[int] = []
        for i in range(self.count):
            value = self.value(i)
            if i != index and value is not None and self.constant(i) is None:
                if not isinstance(value.type, TensorType):
                    return self.operand(index)
                others.append(value.type.get_num_dims())
        if not others or max(others) < known.ndim:
            return self.operand(index)
        return literal(known)


def element_of(type_: Attribute) -> Attribute:
    """
    Returns the element type of a tensor type, ranked or unranked. Returns any other
    type unchanged.
    """
    return getattr(type_, "element_type", type_)


def element_name(type_: Attribute) -> str:
    """Returns the ONNX name of an element type."""
    from onnx import TensorProto

    return TensorProto.DataType.Name(onnx_element_type(type_))


def literal(array: npt.NDArray[Any]) -> str:
    """
    Returns the first element of `array` as the text of a Python number of the same
    value.
    """
    value = array.reshape(-1)[0]
    if array.dtype.kind == "b":
        return repr(bool(value))
    if array.dtype.kind in "iu":
        return repr(int(value))
    number = float(value)
    if np.isnan(number) or np.isinf(number):
        return f"float({str(number)!r})"
    return repr(number)


EmitFunction = Callable[[Call], "str | Sequence[str]"]

torch_emitter = Registry[EmitFunction]("distir.lowering.emitters")
"""
Registers an emitter for the ops with the given names. An emitter is a function from a
`Call` to the Python expression of the result, or to one expression per result.
"""


class _Fields(Formatter):
    """Fills in the fields of a template. `Call.write` documents the fields."""

    def __init__(self, call: Call):
        self._call = call

    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        name, _, own = field_name.partition(".")
        if name == "op" and own:
            return (field_name, repr(getattr(self._call.op, own))), field_name
        return super().get_field(field_name, args, kwargs)

    def get_value(
        self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        return key, kwargs.get(str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        call, (key, text) = self._call, value
        if text is not None:
            return text
        if key == "*":
            return ", ".join(call.operands())
        if key == "op":
            return call.op.name.rpartition(".")[2]
        if key == "result":
            found = getattr(call, f"result_{format_spec}")()
            return found if isinstance(found, str) else repr(found)
        if format_spec or isinstance(key, int):
            return getattr(call, format_spec or "operand")(key)
        return repr(call.attribute(key))


def torch_templates(
    templates: Mapping[str, str], dialect: str = "onnx", module: str = ""
) -> None:
    """
    Registers one emitter per template of `Call.write`, for the ops of `dialect` by
    name. With `module`, the templates are calls of functions of that helper module.
    """
    for name, template in templates.items():
        torch_emitter(f"{dialect}.{name}")(
            lambda call, template=template: call.write(template, module)
        )


for _module, _templates in CALLS.items():
    torch_templates(_templates, module=_module)


SIGNED = {f"torch.uint{n}": f"torch.int{n}" for n in (16, 32, 64)}
"""
The unsigned types on which PyTorch supports few operators, with the signed types of the
same width.
"""


def _holds_wide_unsigned(op: Operation) -> bool:
    value = op.operands[0] if op.operands else None
    type_ = value.type if value is not None else None
    if not isinstance(type_, TensorType):
        return False
    return DTYPES.get(element_name(element_of(type_))) in SIGNED


@dataclass
class _SignedCall(Call):
    """An op on unsigned integers, written for signed integers of the same width."""

    def operand(self, index: int) -> str:
        written = super().operand(index)
        dtype = DTYPES.get(self.element(index)) if self.has(index) else None
        return f"{written}.view({SIGNED[dtype]})" if dtype in SIGNED else written

    def result_dtype(self, index: int = 0) -> str:
        dtype = super().result_dtype(index)
        return SIGNED.get(dtype, dtype)


def _signed_again(written: str | Sequence[str], call: Call) -> str | Sequence[str]:
    """
    Returns the expression `written` on signed integers, viewed as the unsigned type of
    the result. Raises NoLowering if the op has several results, or takes extremes of
    scattered values.
    """
    op = call.op
    reduction = op.properties.get("reduction")
    if isinstance(reduction, StringAttr) and reduction.data in ("max", "min"):
        raise call.fail("PyTorch has no extremes of scattered unsigned integers")
    dtype = call.result_dtype()
    if not isinstance(written, str) or len(op.results) > 1:
        raise call.fail("PyTorch has no such op on unsigned integers")
    return f"({written}).view({dtype})" if dtype in SIGNED else written


def _template_on_class(call: Call) -> str:
    assert isinstance(call.op, OpFacts)
    return call.write(call.op.TORCH, call.op.TORCH_MODULE)


def emitter_for(op: Operation) -> EmitFunction:
    """
    Returns the emitter of an op: its registered emitter, or else the template of its
    class. Raises NoLowering if the op has neither.
    """
    function = torch_emitter.of(op)
    if function is None and isinstance(op, OpFacts) and op.TORCH:
        function = _template_on_class
    if function is None and draws_random_numbers(op):
        raise NoLowering(
            f"{describe(op)} has no torch lowering, as programs draw random numbers for "
            f"dropout alone; draw them in the script, and give them to the model as an input"
        )
    if function is None:
        raise NoLowering(
            f"{describe(op)} has no torch lowering; register one: "
            f"distir.extension.register_op({name_of(op)!r}, OpSupport(torch=...))"
        )
    if op.name in SIGNLESS and _holds_wide_unsigned(op):
        return lambda call: _signed_again(function(_SignedCall(op, call.names)), call)
    return function
