"""
Applies what the user states about the inputs of an ONNX model: the sizes of dynamic
dimensions, and the values of inputs that are the same number in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from distir.errors import DistIRError

_UNNAMED = "?"
"""The name that Paddle's converter gives to every dimension without a name."""


def clear_unknown_sizes(graph: GraphProto) -> None:
    """
    Clears the sizes -1 and the names `?` of unknown dimensions, in place. Paddle's
    converter writes them, but in the standard an unknown dimension has neither a size
    nor a name.
    """
    for info in (*graph.input, *graph.output, *graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value < 0 or dim.dim_param == _UNNAMED:
                dim.Clear()
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                clear_unknown_sizes(body)


def bind_inputs(
    inputs: Sequence[ValueInfoProto], dims: Mapping[str, int]
) -> tuple[dict[str, TypeProto], dict[str, int]]:
    """
    Returns the types of the inputs with every dimension known, and the sizes of the
    symbolic dimensions.

    `dims` gives sizes by a dimension's symbol or as `INPUT.POSITION`. Raises
    DistIRError if a dimension has no size or several sizes, or if `dims` names an
    unknown dimension.
    """
    dynamic = {
        (info.name, index): dim.dim_param
        for info in inputs
        for index, dim in enumerate(info.type.tensor_type.shape.dim)
        if not dim.HasField("dim_value")
    }
    names = [
        *dict.fromkeys(s for s in dynamic.values() if s),
        *(f"{name}.{index}" for name, index in dynamic),
    ]
    for name, size in dims.items():
        if name not in names:
            known = (
                f"its dynamic dimensions are {', '.join(names)}"
                if names
                else ("it has no dynamic dimensions")
            )
            raise DistIRError(
                f"the model has no dynamic dimension {name!r} to give the size {size}: "
                f"{known}"
            )
        if size < 1:
            raise DistIRError(
                f"the size of dimension {name!r} is {size}; give at least 1"
            )
    symbols = {s: dims[s] for s in dynamic.values() if s in dims}
    types: dict[str, TypeProto] = {}
    unresolved: list[str] = []
    remedies: list[str] = []
    for info in inputs:
        type_ = TypeProto()
        type_.CopyFrom(info.type)
        types[info.name] = type_
        for index, dim in enumerate(type_.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
                continue
            key, symbol = f"{info.name}.{index}", dim.dim_param
            size = dims.get(key, symbols.get(symbol) if symbol else None)
            if size and symbol and symbols.setdefault(symbol, size) != size:
                raise DistIRError(
                    f"dimension {symbol!r} gets the sizes {symbols[symbol]} and {size}; "
                    "give it one"
                )
            if size is not None:
                dim.dim_value = size
            else:
                unresolved.append(
                    f"dimension {index} of input {info.name!r}"
                    + (f" ({symbol})" if symbol else "")
                )
                remedies.append(symbol or key)
    if unresolved:
        options = " ".join(f"--dim {name}=SIZE" for name in dict.fromkeys(remedies))
        raise DistIRError(
            f"the model has dynamic dimensions without a size: {', '.join(unresolved)}; "
            f"give their sizes with {options}"
        )
    return types, symbols


def fix_inputs(
    model: ModelProto, inputs: dict[str, TypeProto], numbers: Mapping[str, float]
) -> None:
    """
    Turns each input in `numbers` into a constant, in place. Removes the input from the
    model's inputs and from `inputs`, which maps names to types. Raises DistIRError if
    the input does not exist, holds more than one number, or has a type that cannot hold
    the given number.
    """
    graph = model.graph
    for name, number in numbers.items():
        if name not in inputs:
            known = [each for each, type_ in inputs.items() if _is_single(type_)]
            raise DistIRError(
                f"the model has no input {name!r} to give the value {number:g}: its inputs "
                f"of one number are {', '.join(map(repr, known)) or 'none'}"
            )
        type_ = inputs.pop(name)
        if not _is_single(type_):
            raise DistIRError(
                f"input {name!r} is not a single number, and has no one value; give it to "
                f"`distir run` with --inputs"
            )
        tensor_type = type_.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor_type.elem_type))
        array = np.full([d.dim_value for d in tensor_type.shape.dim], number)
        with np.errstate(invalid="ignore"):
            converted = array.astype(dtype)
        if dtype.kind in "iub" and converted.flat[0] != number:
            element = TensorProto.DataType.Name(tensor_type.elem_type).lower()
            raise DistIRError(f"input {name!r} is {element}, which {number:g} is not")
        constant = numpy_helper.from_array(converted)
        kept = [info for info in graph.input if info.name != name]
        del graph.input[:]
        graph.input.extend(kept)
        graph.node.insert(0, helper.make_node("Constant", [], [name], value=constant))


def _is_single(type_: TypeProto) -> bool:
    if not type_.HasField("tensor_type") or not type_.tensor_type.HasField("shape"):
        return False
    is_text = type_.tensor_type.elem_type == TensorProto.STRING
    return not is_text and prod(d.dim_value for d in type_.tensor_type.shape.dim) == 1
