"""Reads ONNX files: the protobuf message and the tensors in external-data files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from distir.errors import DistIRError

LARGE = 1024
"""
Constants with more elements than this are stored with the weights, outside the program.
"""

_PACKED_BITS = 8
"""
Elements with fewer bits than this are packed. The onnx package reads such tensors as a
whole.
"""


_WEIGHTS = (
    "holds weights, not a model; give a function that makes the module, FILE.py:FUNCTION, or "
    "its configuration, --transformers config.json"
)

_OTHER_FILES = {
    ".mlir": "is a program already, which needs no import: give it to `distir distribute`",
    ".json": "is no ONNX model; the configuration of a model of transformers is given with "
    "--transformers",
    ".npz": "holds arrays, not a model; they are given to `distir run` with --inputs",
    **dict.fromkeys((".safetensors", ".pt", ".pth", ".bin", ".ckpt"), _WEIGHTS),
}
"""
For files that users give in place of an ONNX model, by suffix: what they contain and
what to do with them.
"""


def load_model(path: str | Path) -> ModelProto:
    """
    Returns the model in the ONNX file `path`, without the data in external files.
    Raises DistIRError if the file is missing or is not an ONNX model.
    """
    path = Path(path)
    if path.exists() and (other := _OTHER_FILES.get(path.suffix)):
        raise DistIRError(f"{path} {other}")
    if path.is_dir():
        raise DistIRError(
            f"{path} is a folder; give the .onnx file in it, or a folder of transformers with "
            f"--transformers {path / 'config.json'}"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DistIRError(f"cannot read the model {path}: {error.strerror}") from error
    try:
        model = ModelProto.FromString(content)
    except DecodeError as error:
        raise DistIRError(
            f"{path} is not an ONNX model, or only a part of one: its {len(content)} "
            "bytes cannot be decoded; export or copy the model again"
        ) from error
    if not model.HasField("graph") or not model.opset_import:
        raise DistIRError(
            f"{path} is not an ONNX model: it has no graph or imports no operators; "
            "export or copy the model again"
        )
    return model


def check_text(message: Message) -> None:
    """
    Raises DistIRError if a name in `message` is not UTF-8 text. Protobuf returns such a
    name as bytes.
    """
    for field, value in message.ListFields():
        values: Iterable[Any] = value if field.is_repeated else (value,)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in values:
                check_text(inner)
        elif field.type == FieldDescriptor.TYPE_STRING:
            for text in values:
                if isinstance(text, bytes):
                    raise DistIRError(
                        f"the ONNX model is not valid: its {field.full_name} {text!r} "
                        "is not UTF-8 text; export or copy the model again"
                    )


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's data is in a file of its own, outside of the ONNX file."""
    return tensor.data_location == TensorProto.EXTERNAL


def is_large(tensor: TensorProto) -> bool:
    """
    Whether a tensor is stored with the weights in any case: its data is outside of the
    ONNX file, or it has more than `LARGE` elements.
    """
    return is_external(tensor) or prod(tensor.dims) > LARGE


def _attribute_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
            for body in (attribute.g, *attribute.graphs):
                yield from _attribute_tensors(body.node)


def embed_attribute_tensors(model: ModelProto, folder: Path | None) -> None:
    """
    Copies the external data of tensors in node attributes into the model. These tensors
    are small.
    """
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    for tensor in _attribute_tensors(nodes):
        if is_external(tensor):
            array = tensor_value(tensor, folder)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def tensor_value(tensor: TensorProto, folder: Path | None) -> npt.NDArray[Any]:
    """
    Returns the value of a tensor. Data in an external file under `folder` is
    memory-mapped. Raises DistIRError if the data is missing, outside the folder or of
    the wrong size.
    """
    try:
        if is_external(tensor):
            return _external_value(tensor, folder)
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise DistIRError(
            f"the data of tensor {tensor.name!r} is not valid: {error}; "
            "export the model again"
        ) from error


def _external_value(tensor: TensorProto, folder: Path | None) -> npt.NDArray[Any]:
    entries = {e.key: e.value for e in tensor.external_data}
    path = _external_path(tensor.name, entries.get("location", ""), folder)
    shape = tuple(tensor.dims)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if dtype.kind == "O":
        raise ValueError("strings cannot be kept in an external file")
    count = int(np.prod(shape, dtype=np.int64))
    bits = _bits(tensor.data_type, dtype)
    needed = (count * bits + 7) // 8
    offset, size = int(entries.get("offset", 0)), path.stat().st_size
    length = int(entries.get("length", needed))
    if length != needed or offset < 0 or offset + length > size:
        raise DistIRError(
            f"tensor {tensor.name!r} needs {needed} bytes, but the model says that "
            f"{path} holds {length} at offset {offset}, and the file has {size} bytes; "
            "export or copy the model again"
        )
    if bits < _PACKED_BITS or count == 0:
        inline = TensorProto()
        inline.CopyFrom(tensor)
        inline.ClearField("external_data")
        inline.ClearField("data_location")
        with path.open("rb") as file:
            file.seek(offset)
            inline.raw_data = file.read(length)
        return numpy_helper.to_array(inline)
    mapped = np.memmap(path, np.uint8, "r", offset, (length,))
    return mapped.view(np.ndarray).view(dtype).reshape(shape)


def _bits(onnx_type: int, dtype: np.dtype[Any]) -> int:
    """Returns the number of bits that one element of a tensor takes in an ONNX file."""
    name = TensorProto.DataType.Name(onnx_type)
    for bits, names in ((2, ("UINT2", "INT2")), (4, ("UINT4", "INT4", "FLOAT4E2M1"))):
        if name in names:
            return bits
    return dtype.itemsize * 8


def _external_path(tensor: str, location: str, folder: Path | None) -> Path:
    """
    Returns the path of the file that holds the external data of `tensor`. Raises
    DistIRError if the file is missing or lies outside of the model's folder `folder`.
    """
    if folder is None:
        raise DistIRError(
            f"tensor {tensor!r} is in the external file {location!r}, but the model was "
            "given without its folder; import it from its file"
        )
    folder = folder.resolve()
    path = Path(location)
    is_inside = (
        location
        and not path.is_absolute()
        and ".." not in path.parts
        and "\\" not in location
        and "\0" not in location
    )
    if is_inside and not (folder / path).resolve().is_relative_to(folder):
        raise DistIRError(
            f"tensor {tensor!r} is in the external file {folder / path}, a symbolic link to "
            f"{(folder / path).resolve()}, outside of the model's folder; DistIR does not "
            f"follow it: copy the folder with `cp -rL` and import the copy"
        )
    if not is_inside:
        raise DistIRError(
            f"tensor {tensor!r} is in the external file {location!r}, which is not "
            f"inside the model's folder {folder}; DistIR does not read it: move the "
            "data beside the model and export again"
        )
    if not (folder / path).is_file():
        raise DistIRError(
            f"tensor {tensor!r} is in the external file {folder / path}, which does "
            "not exist; copy it beside the model"
        )
    return folder / path
