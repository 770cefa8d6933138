"""
Arguments that stand for a tensor of the source model in another form.

Sizes that a number of devices does not divide are made larger: a dimension is padded with
zeros (`dist.padded`: the shape before), or the tensor is flattened with zeros behind it
(`dist.flattened`). An argument of the entry function, and the result that replaces it, say so.
Weights files, checkpoints and all values outside of a program are the tensor as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import DenseArrayBase, TensorType, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from distir.dialects.dist import FLATTENED, PADDED
from distir.errors import DistIRError
from distir.flattening import Flattened, flattened_of
from distir.program import argument_attributes, result_attributes

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class SourceForm:
    """
    The tensor that an argument stands for.

    - `shape`: its shape in the source model;
    - `padded`: the shape to which zeros fill it up, `shape` itself if there are none;
    - `flattened`: how it is flattened then, if it is.
    """

    shape: tuple[int, ...]
    padded: tuple[int, ...]
    flattened: Flattened | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the argument."""
        return self.padded if self.flattened is None else self.flattened.flat_shape

    def stored(self, tensor: Array) -> Array:
        """Returns the value of the argument for a value of the tensor."""
        added = zip(self.shape, self.padded, strict=True)
        tensor = np.pad(tensor, [(0, after - size) for size, after in added])
        return tensor if self.flattened is None else self.flattened.flat(tensor)

    def source(self, stored: Array) -> Array:
        """Returns the value of the tensor for a value of the argument."""
        tensor = stored if self.flattened is None else self.flattened.whole(stored)
        return tensor[tuple(slice(size) for size in self.shape)]


def padded_attribute(shape: Sequence[int]) -> Attribute:
    """Returns what `dist.padded` holds for a tensor that had that shape."""
    return DenseArrayBase.from_list(i64, list(shape))


def source_form_of(
    type_: Attribute, attributes: Mapping[str, Attribute]
) -> SourceForm | None:
    """
    Returns what an argument or result with that type and these attributes stands for; None
    if it is as it was. Raises DistIRError for attributes that the type does not fit.
    """
    flattened, padding = flattened_of(attributes), attributes.get(PADDED)
    if flattened is None and padding is None:
        return None
    shape = type_.get_shape() if isinstance(type_, TensorType) else ()
    padded = shape if flattened is None else flattened.shape
    source = padded
    if isinstance(padding, DenseArrayBase):
        source = tuple(int(n) for n in padding.get_values())
    fits = len(source) == len(padded) and all(
        0 <= n <= m for n, m in zip(source, padded, strict=True)
    )
    form = SourceForm(source, padded, flattened)
    if not fits or form.stored_shape != shape:
        told = ", ".join(
            f"{name} = {attributes[name]}"
            for name in (PADDED, FLATTENED)
            if name in attributes
        )
        raise DistIRError(
            f"a tensor with {told} cannot be a {type_}; correct one of them"
        )
    return form


def argument_forms(function: FuncOp) -> list[SourceForm | None]:
    """
    Returns what each argument of a program stands for; None for those that are as they
    were. Raises DistIRError.
    """
    types = function.function_type.inputs.data
    return list(map(source_form_of, types, argument_attributes(function)))


def result_forms(function: FuncOp) -> list[SourceForm | None]:
    """Returns the same for the results. Raises DistIRError."""
    types = function.function_type.outputs.data
    return list(map(source_form_of, types, result_attributes(function)))


def source_types(function: FuncOp) -> tuple[list[Attribute], list[Attribute]]:
    """
    Returns the types of the arguments and results of a program as the source model has
    them. Raises DistIRError.
    """
    types = function.function_type
    return (
        _source_types(types.inputs.data, argument_forms(function)),
        _source_types(types.outputs.data, result_forms(function)),
    )


def check_source_forms(function: FuncOp) -> None:
    """
    Raises DistIRError for arguments and results that are not what their attributes say.
    """
    argument_forms(function)
    result_forms(function)


def _source_types(
    types: Sequence[Attribute], forms: Sequence[SourceForm | None]
) -> list[Attribute]:
    return [
        TensorType(type_.element_type, form.shape)
        if form is not None and isinstance(type_, TensorType)
        else type_
        for type_, form in zip(types, forms, strict=True)
    ]
