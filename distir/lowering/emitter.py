"""
The registry of emitters: the PyTorch expression for one op of a per-rank program.

```python
@torch_emitter("toy.scale")
def scale(call: Call) -> str:
    return call.write("{0} * {factor}")

torch_templates({"scale": "{0} * {factor}"}, "toy")  # the same
```

An op class that derives from `OpFacts` needs neither: it has its template as `TORCH`.

An emitter returns one Python expression: a tensor, or a tuple of tensors for an op with
several results (a list of such expressions is one line each). What the expression may
mention: `torch`, `F` (torch.nn.functional), `self`, and helper modules asked for by
`call.helper`. Text from the IR must go through `repr`, as `Call.write` does it.
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

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.torch_calls import CALLS
from distir.dialects.onnx_ops.traits import SIGNLESS
from distir.dialects.onnx_ops.values import constant_value, onnx_element_type
from distir.dialects.op_facts import OpFacts
from distir.dialects.registries import Registry
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
"""The least and the largest value of integer types of less than a byte."""


class NoLowering(DistIRError):
    """Raised for an op, or a form of it, that has no torch lowering."""


def torch_dtype(onnx_type: int, what: str) -> str:
    """
    Returns the torch dtype, as source text, of a `TensorProto.DataType`. Raises NoLowering.
    """
    from onnx import TensorProto

    name = TensorProto.DataType.Name(onnx_type)
    if name not in DTYPES:
        raise NoLowering(
            f"{what} has no torch lowering for elements of type {name.lower()}"
        )
    return DTYPES[name]


class ValueNames(Protocol):
    """The names of a program's values, groups and functions in the generated source."""

    def name(self, value: SSAValue) -> str:
        """Returns the Python variable (or attribute) that holds a value."""
        ...

    def helper(self, module: str) -> str:
        """Imports a helper module of the package; returns the name to use."""
        ...

    def group(self, op: Operation) -> str:
        """Returns the expression for the process group of a per-rank collective."""
        ...

    def number(self, value: int) -> str:
        """Returns an expression for an integer that may differ between ranks."""
        ...

    def listed(self, values: Sequence[SSAValue]) -> list[str]:
        """
        Returns the items of a list of values; there may be fewer items than values if these
        repeat.
        """
        ...


def known_constant(value: SSAValue | None) -> npt.NDArray[Any] | None:
    """Returns the array of a value made by `onnx.Constant`; None for any other value."""
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
The most recent constants by the identity of their attributes, which ranks share; the
attributes are kept alive with them.
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
    """An op, as its emitter sees it. Operands are numbered as in the op's schema."""

    op: Operation
    names: ValueNames

    def value(self, index: int) -> SSAValue | None:
        """Returns the operand at that position; None if it is omitted."""
        if isinstance(self.op, OnnxOp):
            return self.op.input(index)
        return self.op.operands[index] if index < len(self.op.operands) else None

    @property
    def count(self) -> int:
        """The number of operands, omitted ones included."""
        if isinstance(self.op, OnnxOp):
            return len(self.op.input_values)
        return len(self.op.operands)

    def has(self, index: int) -> bool:
        """Whether the operand is given."""
        return self.value(index) is not None

    def operand(self, index: int) -> str:
        """Returns the variable of an operand; `None` (as text) for an omitted one."""
        value = self.value(index)
        return "None" if value is None else self.names.name(value)

    def operands(self) -> list[str]:
        """Returns the variables of all operands."""
        return [self.operand(i) for i in range(self.count)]

    def helper(self, module: str) -> str:
        """Returns the name of a helper module, which the package then contains."""
        return self.names.helper(module)

    def write(self, template: str, module: str = "", **texts: str) -> str:
        """
        Returns an expression: the template with its fields filled in. With `module`, it is
        a call of a function of that helper module. Fields are:

        - `{0}`: an operand; `{0:integers}`: what the method `integers` returns for it;
          `{*}`: all operands;
        - `{axis}`: the value of an attribute; `{axis:flag}`: what the method `flag` (True
          or False), or another one of this class, returns for it;
        - `{result:dtype}`: what `result_dtype` returns;
        - `{op}`: the name of the op, without its dialect; `{op.dimension}`: a property of
          its class;
        - the texts given here, by name.
        """
        written = _Fields(self).vformat(template, (), texts)
        return f"{self.helper(module)}.{written}" if module else written

    def like_op(self, module: str, arguments: Sequence[str]) -> str:
        """Returns a call of the function of a helper module that is named like the op."""
        written = self.write("{op}({arguments})", arguments=", ".join(arguments))
        return f"{self.helper(module)}.{written}"

    def first(self, written: str) -> str:
        """
        Returns the expression of a helper that returns every result the op may have,
        reduced to those that the op has.
        """
        count = len(self.op.results)
        return f"{written}[0]" if count == 1 else f"{written}[:{count}]"

    def fail(self, why: str) -> NoLowering:
        """Returns the error for a form of the op that is not supported."""
        return NoLowering(f"{describe(self.op)} has no torch lowering: {why}")

    # Attributes and types

    def attribute(self, name: str, default: Any = None) -> Any:
        """
        Returns the value of an attribute, or the default of an ONNX operator's schema.
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
        Returns a float attribute (stored in single precision) as its shortest decimals.
        """
        value = self.attribute(name)
        exact = "DOUBLE" in (self.element(0) if self.has(0) else "")
        return repr(float(value)) if exact else str(float(str(np.float32(value))))

    def flag(self, name: str) -> str:
        """Returns an integer attribute as True or False."""
        return repr(bool(self.attribute(name)))

    def has_attribute(self, name: str) -> bool:
        return name in self.op.properties

    def type_of(self, index: int) -> TensorType[Any]:
        """Returns the tensor type of an operand. Raises NoLowering for other types."""
        value = self.value(index)
        if value is None or not isinstance(value.type, TensorType):
            raise self.fail(f"operand {index} is not a tensor of known rank")
        return value.type

    def rank(self, index: int = 0) -> int:
        """Returns the number of dimensions of an operand."""
        return self.type_of(index).get_num_dims()

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Returns the local shape of an operand, with -1 for unknown sizes."""
        return self.type_of(index).get_shape()

    def is_ranked(self, index: int) -> bool:
        """Whether the number of dimensions of an operand is known."""
        value = self.value(index)
        return value is not None and isinstance(value.type, TensorType)

    def element(self, index: int = 0) -> str:
        """Returns the ONNX name of an operand's element type, such as `FLOAT16`."""
        value = self.value(index)
        if value is None:
            raise self.fail(f"operand {index} is missing")
        try:
            return element_name(element_of(value.type))
        except ValueError as error:
            raise self.fail(f"operand {index} is not a tensor") from error

    def result_type(self, index: int = 0) -> TensorType[Any]:
        """Returns the tensor type of a result. Raises NoLowering for other types."""
        type_ = self.op.results[index].type
        if not isinstance(type_, TensorType):
            raise self.fail(f"result {index} is not a tensor of known rank")
        return type_

    def result_shape(self, index: int = 0) -> tuple[int, ...] | None:
        """Returns the local shape of a result; None unless every dimension is known."""
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
        """Returns the torch dtype for an ONNX element type number, as source text."""
        return torch_dtype(onnx_type, describe(self.op))

    # Known values

    def constant(self, index: int) -> npt.NDArray[Any] | None:
        """Returns the array of an operand that is a constant; None for others."""
        return known_constant(self.value(index))

    def integers(self, index: int) -> str:
        """
        Returns an expression for the list of Python integers that an operand holds: a
        literal if the values are known.
        """
        known = self.constant(index)
        if known is not None:
            return repr([int(v) for v in known.reshape(-1)])
        if not self.has(index):
            return "None"
        return f"{self.operand(index)}.reshape(-1).tolist()"

    def integer(self, index: int) -> str:
        """
        Returns an expression for the one Python integer that an operand holds, or `None` if
        it is omitted.
        """
        known = self.constant(index)
        if known is not None:
            return repr(int(known.reshape(-1)[0]))
        return f"int({self.operand(index)})" if self.has(index) else "None"

    def number(self, index: int) -> str:
        """Returns an expression for the one Python number that an operand holds."""
        known = self.constant(index)
        if known is not None:
            return literal(known)
        return f"{self.operand(index)}.item()"

    def scalar(self, index: int) -> str:
        """
        Returns an operand of an elementwise op: as a Python number if it is a known scalar
        that the other operand's shape absorbs, else as its variable.
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
    """Returns the element type of a tensor type, ranked or not."""
    return getattr(type_, "element_type", type_)


def element_name(type_: Attribute) -> str:
    """Returns the ONNX name of an element type."""
    from onnx import TensorProto

    return TensorProto.DataType.Name(onnx_element_type(type_))


def literal(array: npt.NDArray[Any]) -> str:
    """Returns a one-element array as a Python number that has the same value."""
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
Registers the emitter of the ops with these names: a function from a `Call` to the Python
expression of the result, or to one expression for each result.
"""


class _Fields(Formatter):
    """Fills in the fields that `Call.write` documents."""

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
    Registers emitters that are one template of `Call.write` each; with `module`, they are
    calls of functions of that helper module.
    """
    for name, template in templates.items():
        torch_emitter(f"{dialect}.{name}")(
            lambda call, template=template: call.write(template, module)
        )


for _module, _templates in CALLS.items():
    torch_templates(_templates, module=_module)


_SIGNED = {f"torch.uint{n}": f"torch.int{n}" for n in (16, 32, 64)}
"""Types that PyTorch stores and hardly computes with, and those of the same bits."""


def _holds_wide_unsigned(op: Operation) -> bool:
    value = op.operands[0] if op.operands else None
    type_ = value.type if value is not None else None
    if not isinstance(type_, TensorType):
        return False
    return DTYPES.get(element_name(element_of(type_))) in _SIGNED


@dataclass
class _SignedCall(Call):
    """An op on unsigned integers as one on signed integers of the same bits."""

    def operand(self, index: int) -> str:
        written = super().operand(index)
        dtype = DTYPES.get(self.element(index)) if self.has(index) else None
        return f"{written}.view({_SIGNED[dtype]})" if dtype in _SIGNED else written

    def result_dtype(self, index: int = 0) -> str:
        dtype = super().result_dtype(index)
        return _SIGNED.get(dtype, dtype)


def _signed_again(written: str | Sequence[str], call: Call) -> str | Sequence[str]:
    """Results of unsigned integers in their own type again."""
    op = call.op
    reduction = op.properties.get("reduction")
    if isinstance(reduction, StringAttr) and reduction.data in ("max", "min"):
        raise call.fail("PyTorch has no extremes of scattered unsigned integers")
    dtype = call.result_dtype()
    if not isinstance(written, str) or len(op.results) > 1:
        raise call.fail("PyTorch has no such op on unsigned integers")
    return f"({written}).view({dtype})" if dtype in _SIGNED else written


def _template_on_class(call: Call) -> str:
    assert isinstance(call.op, OpFacts)
    return call.write(call.op.TORCH, call.op.TORCH_MODULE)


def emitter_for(op: Operation) -> EmitFunction:
    """
    Returns the emitter of an op: the one that is registered for it, else the template on its
    class. Raises NoLowering if there is neither.
    """
    function = torch_emitter.get(op.name)
    if function is None and isinstance(op, OpFacts) and op.TORCH:
        return _template_on_class
    if function is None:
        raise NoLowering(
            f"{describe(op)} has no torch lowering; register one with "
            f"distir.lowering.emitter.torch_emitter({op.name!r})"
        )
    if op.name in SIGNLESS and _holds_wide_unsigned(op):
        return lambda call: _signed_again(function(_SignedCall(op, call.names)), call)
    return function
