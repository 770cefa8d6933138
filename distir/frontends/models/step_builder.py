"""
Appends the modules of an inference step to a function. Weights and caches may have 4 or
8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.ir import SSAValue, TypeAttribute

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.quantized_rows import (
    DequantizeGroupsOp,
    DequantizeRowsOp,
    QuantizeRowsOp,
)
from distir.dialects.train_ops.quantized_weights import (
    EIGHT_BITS,
    PACKED,
    GroupQuantizedLinearOp,
    QuantizedLinearOp,
)
from distir.errors import DistIRError
from distir.frontends.models.module_builder import ModuleBuilder

_ROWS = ("quantized", "scale")
"""The ends of the names of the tensors that stand for a tensor of 8 bits."""


@dataclass(frozen=True)
class StepFormats:
    """
    The number formats of a step's matrices and caches. A format that is None means the
    type of the model.

    - `weights`: the format of the layers' matrices, one of `WEIGHT_FORMATS`.
    - `cache`: the format of the caches, one of `EIGHT_BITS`.
    - `group`: the number of 4-bit weights that share a scale.
    """

    weights: str | None = None
    cache: str | None = None
    group: int = 128


PLAIN = StepFormats()
"""The type of the model everywhere."""


class Matrices(NamedTuple):
    """
    The matrices of all experts: [experts, inputs, outputs], or [experts, outputs,
    inputs] if `transposed`.
    """

    value: SSAValue
    transposed: UnitAttr | None


class StepBuilder(ModuleBuilder):
    """
    Appends modules with weights and caches in the given `formats`. The arguments for
    weights and caches have the names that the passes `quantize-weights` and
    `quantize-caches` would give them.
    """

    def __init__(self, element: TypeAttribute, root: str, formats: StepFormats):
        super().__init__(element, root)
        self.formats = formats

    def linear(
        self, name: str, value: SSAValue, outputs: int, bias: bool = True
    ) -> SSAValue:
        """
        Adds the product of `value` and a matrix of parameters, and returns the result.
        Raises DistIRError if the group size of 4-bit weights does not divide the number
        of inputs.
        """
        kind = self.formats.weights
        if kind is None:
            return super().linear(name, value, outputs, bias)
        self.at(name)
        inputs = shape_of(value)[-1]
        result = self.type((*shape_of(value)[:-1], outputs))
        path = f"{name}.weight"
        if kind == "int4":
            parts = self._four_bits(path, (outputs, inputs))
            return self.add(GroupQuantizedLinearOp(value, *parts, y=result))[0]
        parts = self._eight_bits(path, (outputs, inputs), kind)
        return self.add(QuantizedLinearOp(value, *parts, y=result))[0]

    def experts(self, name: str, experts: int, inputs: int, outputs: int) -> Matrices:
        """
        Adds the matrices `name` of all experts, each from `inputs` to `outputs`
        features, and returns them. Raises DistIRError if the group size of 4-bit
        weights does not divide the rows of the matrices.
        """
        kind = self.formats.weights
        if kind is None:
            return Matrices(self.parameter(name, (experts, inputs, outputs)), None)
        shape = (experts, outputs, inputs)
        made = self.type(shape)
        if kind == "int4":
            op = DequantizeGroupsOp(*self._four_bits(name, shape), x=made)
        else:
            op = DequantizeRowsOp(*self._eight_bits(name, shape, kind), x=made)
        return Matrices(self.add(op)[0], UnitAttr())

    def cached(
        self, name: str, shape: Sequence[int], role: str | None = None
    ) -> list[SSAValue]:
        """
        Adds the arguments that hold the cache `name` of shape `shape`: one tensor, or
        for 8 bits the values and their scales.
        """
        parts = [self.type(shape)]
        if self.formats.cache is not None:
            parts = self._rows(shape, self.formats.cache)
        names = cache_names(name, self.formats)
        return [
            self.argument(own, shape_of(type_), role=role, element=type_.element_type)
            for own, type_ in zip(names, parts, strict=True)
        ]

    def read(self, parts: Sequence[SSAValue]) -> SSAValue:
        """
        Returns the numbers in a cache as a tensor in the model's type. `parts` are the
        arguments that hold the cache.
        """
        if len(parts) == 1:
            return parts[0]
        return self.add(DequantizeRowsOp(*parts, x=self.type(shape_of(parts[0]))))[0]

    def kept(self, value: SSAValue) -> list[SSAValue]:
        """
        Returns the new keys or values `value` in the format of the cache: one tensor,
        or for 8 bits the values and their scales.
        """
        if self.formats.cache is None:
            return [value]
        quantized, scale = self._rows(shape_of(value), self.formats.cache)
        return list(self.add(QuantizeRowsOp(value, quantized=quantized, scale=scale)))

    def _rows(self, shape: Sequence[int], kind: str) -> list[TensorType[Any]]:
        """
        Returns the types of a tensor of shape `shape` in the 8-bit format `kind`, and
        of its scales.
        """
        return [self.type(shape, EIGHT_BITS[kind][0]), self.type(shape[:-1])]

    def _eight_bits(self, name: str, shape: Sequence[int], kind: str) -> list[SSAValue]:
        """
        Adds the arguments that hold the matrices `name` in the 8-bit format `kind`:
        values and scales.
        """
        return [
            self.parameter(f"{name}.{end}", shape_of(type_), element=type_.element_type)
            for end, type_ in zip(_ROWS, self._rows(shape, kind), strict=True)
        ]

    def _four_bits(self, name: str, shape: Sequence[int]) -> list[SSAValue]:
        """
        Adds the tensors that hold the matrices `name` [..., inputs] in 4 bits. Raises
        DistIRError if the group size does not divide the number of inputs.
        """
        *rows, inputs = shape
        group = self.formats.group
        if inputs % group:
            raise DistIRError(
                f"{name} has {inputs} inputs, which groups of {group} weights in 4 bits do "
                f"not divide; choose another weights_dtype"
            )
        groups = (*rows, inputs // group)
        packed = (*rows, inputs // 2)
        return [
            self.parameter(f"{name}.quantized", packed, element=PACKED),
            self.parameter(f"{name}.scale", groups),
            self.parameter(f"{name}.zero", groups, element=PACKED),
        ]


def cache_names(name: str, formats: StepFormats) -> list[str]:
    """Returns the names of the tensors that hold the cache `name`."""
    return [name] if formats.cache is None else [f"{name}.{end}" for end in _ROWS]
