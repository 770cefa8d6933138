"""The conversions of StableHLO ops, which the files of `ops` register by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from distir.frontends.stablehlo import attributes
from distir.frontends.stablehlo.builder import TensorBuilder
from distir.frontends.stablehlo.tensors import Array, LazyTensor, Shape

Values = dict[SSAValue, LazyTensor]
"""The tensors that values of StableHLO are."""


class ModuleConversion(Protocol):
    """The conversion of a module, as the conversions of its ops see it."""

    build: TensorBuilder

    def name_of(self, op: Operation) -> str:
        """Returns the name of a StableHLO op."""
        ...

    def word(self, op: Operation, name: str) -> str:
        """Returns the last word of an attribute of an op."""
        ...

    def constant(self, array: Array, element: Attribute) -> LazyTensor:
        """Returns the tensor of a constant."""
        ...

    def callee(self, op: Operation) -> FuncOp:
        """Returns the function that a call calls."""
        ...

    def call(
        self, function: FuncOp, operands: Sequence[LazyTensor]
    ) -> list[LazyTensor]:
        """Calls a function, which is converted once for operands of one form."""
        ...

    def block(
        self, block: Block, operands: Sequence[LazyTensor], outer: Values | None = None
    ) -> list[LazyTensor]:
        """Converts the ops of a block, and returns what it returns."""
        ...

    def op(self, op: Operation, values: Values) -> None:
        """Converts one op, and adds its results to `values`."""
        ...


class UnsupportedError(Exception):
    """A form of an op that cannot be converted, with the reason."""


@dataclass(frozen=True, eq=False)
class HloCall:
    """An op that is to be converted: the op, its operands, and where ops are added."""

    converter: ModuleConversion
    op: Operation
    operands: Sequence[LazyTensor]

    @property
    def build(self) -> TensorBuilder:
        """The builder to which the converted ops are appended."""
        return self.converter.build

    def attribute(self, name: str) -> Attribute | None:
        """Returns a property or attribute of the op, or None."""
        return attributes.attribute(self.op, name)

    def integers(self, name: str) -> list[int]:
        """Returns the integers of an attribute; [] if it is absent."""
        return attributes.integers(self.attribute(name))

    def integer(self, name: str, default: int = 0) -> int:
        """Returns the integer of an attribute, or `default`."""
        return attributes.integer(self.attribute(name), default)

    def numbers(self, name: str) -> dict[str, list[int]]:
        """Returns the lists of integers inside an attribute, by name."""
        return attributes.numbers(self.attribute(name))

    def word(self, name: str) -> str:
        """Returns the last word of an attribute."""
        return attributes.last_word(self.attribute(name))

    def shape(self, index: int = 0) -> Shape:
        """The shape of a result."""
        type_ = self.op.results[index].type
        assert isinstance(type_, TensorType)
        return type_.get_shape()

    def element(self, index: int = 0) -> Attribute:
        """The element type of a result."""
        type_ = self.op.results[index].type
        assert isinstance(type_, TensorType)
        return type_.element_type

    def body(self, index: int = 0) -> list[Operation]:
        """The ops of a region, without its return."""
        return list(self.op.regions[index].block.ops)[:-1]


Conversion = Callable[[HloCall], LazyTensor | Sequence[LazyTensor]]

CONVERSIONS: dict[str, Conversion] = {}
"""How each op is converted, by its name."""


def converts(*names: str) -> Callable[[Conversion], Conversion]:
    """
    Registers a function as the conversion of ops. It returns the tensors of the
    results, and raises UnsupportedError for a form that it does not know.
    """

    def add(function: Conversion) -> Conversion:
        for name in names:
            assert name not in CONVERSIONS, name
            CONVERSIONS[name] = function
        return function

    return add
