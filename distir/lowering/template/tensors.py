"""Reads and writes tensors in files, with PyTorch alone: safetensors and .pt."""

import json
import struct
from pathlib import Path

import torch

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


class FileError(Exception):
    """Raised if a tensor file cannot be used; the message says why."""


class Constants:
    """The constants of a program: bytes by name, in a file beside it."""

    def __init__(self, program, name):
        self._path = Path(program).with_name(name)
        self._bytes = None
        self._made = {}

    def tensor(self, name, dtype, shape):
        """Returns a constant on the default device; the same tensor each time."""
        if self._bytes is None:
            self._bytes = load(self._path)
        device = torch.get_default_device()
        if (name, device) not in self._made:
            flat = self._bytes[name].clone().view(dtype)
            self._made[name, device] = flat.reshape(shape).to(device)
        return self._made[name, device]


def load(path):
    """
    Returns the tensors of a file by name; those of a safetensors file, or of all such files
    in a folder, are memory-mapped.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise FileError(f"the folder {path} has no .safetensors files")
        return {name: t for file in files for name, t in load(file).items()}
    try:
        if path.suffix == ".pt":
            return torch.load(path, weights_only=True, map_location="cpu")
        return _load_safetensors(path)
    except FileError:
        raise
    except Exception as error:
        raise FileError(f"cannot read tensors from {path}: {error}") from error


def _load_safetensors(path):
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8:
            raise FileError(f"{path} is truncated or not a safetensors file")
        header = json.loads(file.read(length))
    data = torch.from_file(
        str(path), shared=False, size=size, dtype=torch.uint8, device="cpu"
    )
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
        part = data[begin:end]
        if begin % dtype.itemsize:
            part = part.clone()
        found[name] = part.view(dtype).reshape(entry["shape"])
    return found


def save(path, tensors):
    """Writes tensors by name, as .pt or safetensors depending on the suffix of the path."""
    path = Path(path)
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    if path.suffix == ".pt":
        torch.save(tensors, path)
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
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(start + offset)
    data = torch.from_file(
        str(path), shared=True, size=start + offset, dtype=torch.uint8, device="cpu"
    )
    for name, tensor in tensors.items():
        begin, end = header[name]["data_offsets"]
        if end > begin:
            data[start + begin : start + end] = tensor.reshape(-1).view(torch.uint8)
