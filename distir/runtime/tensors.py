"""Reads and writes files of tensors, safetensors and .pt, with PyTorch alone."""

import json
import os
import re
import struct
from contextlib import contextmanager
from pathlib import Path

import torch

from .output_files import replaced

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PICKLED = (".pt", ".pth", ".bin")
"""The suffixes of files that `torch.save` writes."""


class FileError(Exception):
    """Raised if a tensor file cannot be used. The message gives the reason."""


class Constants:
    """The constants of a program: bytes by name, in a file in the program's folder."""

    def __init__(self, program, name):
        self._path = Path(program).with_name(name)
        self._bytes = None
        self._made = {}

    def tensor(self, name, dtype, shape):
        """
        Returns the constant `name` as a tensor on the default device. Repeated calls
        return the same tensor.
        """
        if self._bytes is None:
            self._bytes = load(self._path)
        device = torch.get_default_device()
        if (name, device) not in self._made:
            flat = self._bytes[name].clone().view(dtype)
            self._made[name, device] = flat.reshape(shape).to(device)
        return self._made[name, device]


def load(path):
    """
    Returns the tensors in a file, by name. Tensors of a safetensors file, or of all
    such files in a folder, are memory-mapped. Only tensors are read from a file of
    `torch.save`, which is a pickle. Raises FileError if the file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise FileError(f"the folder {path} has no .safetensors files")
        return {name: t for file in files for name, t in load(file).items()}
    if path.exists() and not path.is_file():
        raise FileError(f"{path} is not a file with data")
    try:
        if path.suffix in _PICKLED:
            return _load_pickled(path)
        return _load_safetensors(path)
    except FileError:
        raise
    except Exception as error:
        raise FileError(f"cannot read tensors from {path}: {why(error)}") from error


def why(error):
    """
    Returns the reason why PyTorch could not read a file, in one line. Leaves out
    PyTorch's advice to run the code in the file.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    if "weights_only" not in text:
        return text
    if named := re.search(r"\bGLOBAL ([\w.]+\w)", text):
        return f"it names {named[1]}, which tensors do not consist of; it may run code"
    return "it is damaged, or holds other things than tensors"


def _load_pickled(path):
    found = torch.load(path, weights_only=True, map_location="cpu")
    if not isinstance(found, dict):
        raise FileError(f"{path} holds a {type(found).__name__}, not tensors by name")
    named = {name: t for name, t in found.items() if isinstance(t, torch.Tensor)}
    if found and not named:
        raise FileError(
            f"{path} holds no tensors by name, but {list(map(str, found))[:3]}; save the "
            f"state_dict of the module alone"
        )
    return named


def _load_safetensors(path):
    size = path.stat().st_size
    data = torch.from_file(
        str(path), shared=False, size=size, dtype=torch.uint8, device="cpu"
    )
    found = {}
    for name, (dtype, shape, begin, end) in entries(path).items():
        part = data[begin:end]
        if begin % dtype.itemsize:
            part = part.clone()
        found[name] = part.view(dtype).reshape(shape)
    return found


def entries(path):
    """
    Returns the tensors of a safetensors file by name, without reading them: the type,
    the shape, and the positions in the file at which the tensor's bytes begin and end.
    Raises FileError if the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8:
            raise FileError(f"{path} is truncated or not a safetensors file")
        header = json.loads(file.read(length))
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise FileError(f"{path}: {name!r} has type {entry['dtype']}")
        if not 8 + length <= begin <= end <= size:
            raise FileError(
                f"{path} is truncated: {name!r} ends at byte {end} of {size}"
            )
        if any(size < 0 for size in entry["shape"]):
            raise FileError(f"{path}: {name!r} has the shape {entry['shape']}")
        found[name] = dtype, tuple(entry["shape"]), begin, end
    return found


def save(path, tensors):
    """
    Writes tensors by name, as .pt or safetensors depending on the suffix of `path`.
    Raises FileError if safetensors cannot store the tensors.
    """
    path = Path(path)
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    if path.suffix in _PICKLED:
        with (
            _errors_name(path),
            replaced(path) as partial,
            partial.open("wb") as file,
        ):
            torch.save(tensors, file)
        return
    if "__metadata__" in tensors:
        raise FileError(f"{path}: safetensors reserves the name __metadata__; use .pt")
    header, offset = {}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise FileError(f"{path}: safetensors cannot hold {tensor.dtype}; use .pt")
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    with _errors_name(path), replaced(path) as partial:
        with partial.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.flush()
            # Without reserved disk space, writing mapped memory could kill the process.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, start + offset)
            else:
                file.truncate(start + offset)
        data = torch.from_file(
            str(partial),
            shared=True,
            size=start + offset,
            dtype=torch.uint8,
            device="cpu",
        )
        for name, tensor in tensors.items():
            begin, end = header[name]["data_offsets"]
            if end > begin:
                own = tensor.reshape(-1).view(torch.uint8)
                data[start + begin : start + end] = own


@contextmanager
def _errors_name(path):
    """Turns errors of writing to `path`, such as a full disk, into FileError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        why_not = getattr(error, "strerror", None) or why(error)
        raise FileError(f"cannot write {path}: {why_not}") from error
