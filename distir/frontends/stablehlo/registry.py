"""
The registry of conversions of StableHLO ops. The files in `ops` register conversions by
op name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from distir.frontends.stablehlo import attributes
from distir.frontends.stablehlo.builder import TensorBuilder
from distir.frontends.stablehlo.tensors import Array, LazyTensor, Shape

Values = dict[SSAValue, LazyTensor]
"""The tensor of each value of a StableHLO program."""


class HloResult(NamedTuple):
    """A result of a StableHLO op: the op, and the index of the result."""

    op: Operation
    result: int


class ModuleConversion(Protocol):
    """The part of a module's conversion that the conversions of single ops may use."""

    build: TensorBuilder

    def name_of(self, op: Operation) -> str:
        """Returns the name of `op`."""
        ...

    def word(self, op: Operation, name: str) -> str:
        """
        Returns the last word of the attribute `name` of an op, or "" if the attribute
        is absent.
        """
        ...

    def constant(self, array: Array, element: Attribute) -> LazyTensor:
        """Returns a tensor with the elements of `array`."""
        ...

    def callee(self, op: Operation) -> FuncOp:
        """Returns the function that the call `op` calls."""
        ...

    def constrained(self, op: Operation, tensor: LazyTensor) -> LazyTensor:
        """
        Returns `tensor` with the sharding that the constraint `op` requests. Returns
        `tensor` unchanged if the import ignores shardings, or if the tensor is a known
        array.
        """
        ...

    def call(
        self, function: FuncOp, operands: Sequence[LazyTensor]
    ) -> list[LazyTensor]:
        """
        Adds a call of a function and returns its results. All calls whose operands have
        the same shapes, types and known elements share one converted function.
        """
        ...

    def block(
        self, block: Block, operands: Sequence[LazyTensor], outer: Values | None = None
    ) -> list[LazyTensor]:
        """
        Converts the ops of a block, with `operands` as its arguments, and returns the
        tensors that the block returns. `outer` are the values from outside of the block
        that its ops may use.
        """
        ...

    def op(self, op: Operation, values: Values) -> None:
        """Converts one op, and adds its results to `values`."""
        ...


class UnsupportedError(Exception):
    """
    Raised for an op that cannot be converted because of its attributes or operands. The
    message is the reason.
    """


@dataclass(frozen=True, eq=False)
class HloCall:
    """An op to convert: the op, its operands, and the conversion of its module."""

    converter: ModuleConversion
    op: Operation
    operands: Sequence[LazyTensor]

    @property
    def build(self) -> TensorBuilder:
        """The builder to which the converted ops are appended."""
        return self.converter.build

    def attribute(self, name: str) -> Attribute | None:
        """
        Returns the property or attribute `name` of the op, or None if the op has
        neither.
        """
        return attributes.attribute(self.op, name)

    def integers(self, name: str) -> list[int]:
        """
        Returns the integers of the attribute `name`, or [] if the attribute is absent.
        """
        return attributes.integers(self.attribute(name))

    def integer(self, name: str, default: int = 0) -> int:
        """
        Returns the integer of the attribute `name`, or `default` if the attribute is
        absent.
        """
        return attributes.integer(self.attribute(name), default)

    def numbers(self, name: str) -> dict[str, list[int]]:
        """
        Returns the lists of integers inside the attribute `name`, by the name of each
        list.
        """
        return attributes.numbers(self.attribute(name))

    def word(self, name: str) -> str:
        """
        Returns the last word of the attribute `name`, or "" if the attribute is absent.
        """
        return attributes.last_word(self.attribute(name))

    def shape(self, index: int = 0) -> Shape:
        """Returns the shape of the result `index`."""
        type_ = self.op.results[index].type
        assert isinstance(type_, TensorType)
        return type_.get_shape()

    def element(self, index: int = 0) -> Attribute:
        """Returns the element type of the result `index`."""
        type_ = self.op.results[index].type
        assert isinstance(type_, TensorType)
        return type_.element_type

    @property
    def target(self) -> str:
        """The name of the function that a custom call calls."""
        return attributes.text(self.attribute("call_target_name"))

    def body(self, index: int = 0) -> list[Operation]:
        """Returns the ops of the region `index`, without its return op."""
        return list(self.op.regions[index].block.ops)[:-1]


Conversion = Callable[[HloCall], LazyTensor | Sequence[LazyTensor]]

CONVERSIONS: dict[str, Conversion] = {}
"""The conversion of each op, by op name."""


def converts(*names: str) -> Callable[[Conversion], Conversion]:
    """
    Returns a decorator that registers a function as the conversion of the ops `names`.
    The function returns the tensors of the results. It raises UnsupportedError if it
    does not support the attributes or operands of an op.
    """

    def add(function: Conversion) -> Conversion:
        for name in names:
            assert name not in CONVERSIONS, name
            CONVERSIONS[name] = function
        return function

    return add
