"""Gives inputs of an ONNX model the numbers that a user says they always are."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, helper, numpy_helper

from distir.errors import DistIRError


def fix_inputs(
    model: ModelProto, inputs: dict[str, TypeProto], numbers: Mapping[str, float]
) -> None:
    """
    Makes a constant of each input in `numbers`, in place: it is removed from the model's
    inputs and from `inputs`, their types by name. Raises DistIRError for an input that does
    not exist, that holds more than one number, or cannot hold this one.
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
