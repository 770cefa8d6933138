"""
Reads what a checkpoint of torch.distributed.checkpoint (DCP) says of itself. Its
`.metadata` is a pickle, and a pickle may call anything: this one is read with stand-ins for
the classes that DCP writes, and refused if it names any other. What it says is checked
before objects of DCP are made of it, so that whoever wrote it can make a checkpoint wrong,
but not run code or have other files read.
"""

import io
import pickle
import pickletools
import stat
from math import prod
from pathlib import Path, PurePosixPath

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from .. import runtime
from ..tensors import why

METADATA = ".metadata"
"""The file that makes a folder a checkpoint of DCP."""

_DCP = "torch.distributed.checkpoint"
_SHARDS = "torch.distributed._shard"
_CLASSES = {
    **{
        (f"{_DCP}.metadata", name): name
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
        )
    },
    (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"): "",
    (f"{_DCP}.filesystem", "_StorageInfo"): "_StorageInfo",
    # Where PyTorch 2.2 and before have two of them.
    (f"{_SHARDS}.sharded_tensor.metadata", "TensorProperties"): "TensorProperties",
    (f"{_SHARDS}.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"): "",
    ("torch", "Size"): "Size",
    ("torch.serialization", "_get_layout"): "",
    # Where the checkpoint was written.
    **{
        (module, f"{pure}{kind}Path"): ""
        for module in ("pathlib", "pathlib._local")
        for pure in ("", "Pure")
        for kind in ("", "Posix", "Windows")
    },
    ("collections", "OrderedDict"): "dict",
}
"""
The classes that a pickle of DCP names, and those that stand for them here ("": not used).
"""

_STRIDES, _STRIDES_AT = "strides", 5
"""What PyTorch 2.15 adds to the properties of a tensor, and its place in their state."""

_STORING = ("PUT", "BINPUT", "LONG_BINPUT")


class CheckpointError(runtime.ProgramError):
    """A checkpoint cannot be used or written; the message says why."""


class Reader(dcp.FileSystemReader):
    """
    Reads a checkpoint. Its metadata is read once for all tensors; `files`, if given, are
    those that were verified, and no others are read.
    """

    def __init__(self, path, files=None):
        super().__init__(path)
        self._files, self._known = files, None

    def read_metadata(self, *args, **kwargs):
        """Returns the metadata. Raises CheckpointError."""
        if self._known is None:
            self._known = read_metadata(self.path, self._files)
            self._known.storage_meta = StorageMeta(load_id=self.load_id)
        return self._known


def read_metadata(path, files=None):
    """
    Returns the metadata of the checkpoint in a folder, whose tensors are complete, in files
    of the folder (which `files` lists, if given). Raises CheckpointError.
    """
    path = Path(path)
    try:
        said = _Unpickler(regular_file(path, METADATA).read_bytes()).load()
        metadata = _metadata(said)
    # A damaged pickle raises whatever comes first: EOFError, IndexError, KeyError, ...
    except Exception as error:
        raise CheckpointError(
            f"{path} is no checkpoint that can be read: {METADATA}: {why(error)}"
        ) from error
    try:
        _check_files(path, metadata.storage_data, files)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return metadata


def regular_file(folder, name):
    """
    Returns the path of a file by its name in a folder. Raises ValueError for a name that
    leads out of the folder, also by a link, and for a file that cannot be read to its end,
    such as a device or pipe; OSError if there is none.
    """
    text = name if isinstance(name, str) else ""
    if not text or "\0" in text or "\\" in text:
        raise ValueError(f"{str(name)[:99]!r} is not the name of a file")
    home, parts = Path(folder).resolve(), PurePosixPath(text).parts
    is_inside = ".." not in parts and not text.startswith("/")
    try:
        path = (home / text).resolve(strict=True) if is_inside else None
    except RuntimeError as error:  # from Python 3.13 on it is an OSError
        raise ValueError(f"{text!r} is a link to itself") from error
    if path is None or not path.is_relative_to(home):
        raise ValueError(
            f"{text!r} leads out of the folder of the checkpoint; copy its files there"
        )
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{text!r} is not a file with data")
    return path


class _Unpickler(pickle.Unpickler):
    """Reads a pickle with stand-ins for the classes that it may name."""

    def __init__(self, data):
        for opcode, argument, _ in pickletools.genops(data):
            # The table of stored objects is as long as the largest number in it.
            if opcode.name in _STORING and argument > len(data):
                raise ValueError("it is damaged")
        super().__init__(io.BytesIO(data))
        self._made = {}

    def find_class(self, module, name):
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in _CLASSES:
            raise ValueError(
                f"it names {module}.{name}, which a checkpoint's metadata does not "
                f"consist of: it is of another program, or meant to run code"
            )
        if (module, name) == ("collections", "OrderedDict"):
            return type("OrderedDict", (dict,), {})
        # Of this pickle alone, as a pickle may change the classes that it is given.
        return self._made.setdefault(
            (module, name),
            type(name, (_Said,), {"kind": _CLASSES[module, name]}),
        )


class _Said:
    """Stands for an object: what it is made of, and its state."""

    kind, arguments, state = "", (), None

    def __new__(cls, *arguments):
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __setstate__(self, state):
        self.__dict__["state"] = state


def _fields(said, kind):
    """Returns the state of an object of a class, by the names of its fields."""
    if not isinstance(said, _Said) or said.kind != kind:
        raise ValueError(f"a {kind} is missing")
    state = {} if said.state is None else said.state
    if not isinstance(state, dict):
        raise ValueError(f"a {kind} has no fields")
    return state


def _metadata(said):
    fields = _fields(said, "Metadata")
    tensors = {
        _text(name): _stored(name, about)
        for name, about in _dict(fields.get("state_dict_metadata")).items()
    }
    paths = fields.get("planner_data")
    paths = (
        None
        if paths is None
        else {
            _text(name): tuple(map(_step, path)) if isinstance(path, tuple) else (name,)
            for name, path in _dict(paths).items()
        }
    )
    places = {}
    for index, info in _dict(fields.get("storage_data")).items():
        own = _fields(index, "MetadataIndex")
        offset = own.get("offset")
        key = MetadataIndex(_text(own.get("fqn")), offset and _size(offset))
        places[key] = _place(info)
    for name, about in tensors.items():
        _check_complete(name, about, places)
    return Metadata(tensors, paths, places)


def _stored(name, said):
    """Returns the description of an entry of a checkpoint."""
    if isinstance(said, _Said) and said.kind == "BytesStorageMetadata":
        return BytesStorageMetadata()
    fields = _fields(said, "TensorStorageMetadata")
    about = fields.get("properties")
    # Its type, and what DCP does not use any more.
    is_known = isinstance(about, _Said) and about.kind == "TensorProperties"
    state = about.state if is_known else None
    if not (isinstance(state, tuple) and state and isinstance(state[0], torch.dtype)):
        raise ValueError(f"{name!r} has no element type")
    chunks = fields.get("chunks")
    if not isinstance(chunks, list):
        raise ValueError(f"{name!r} has no list of its parts")
    found, size = [], _size(fields.get("size"))
    for chunk in chunks:
        own = _fields(chunk, "ChunkStorageMetadata")
        box = _size(own.get("offsets")), _size(own.get("sizes"))
        if any(len(corner) != len(size) for corner in box):
            raise ValueError(f"a part of {name!r} has another number of dimensions")
        found.append(ChunkStorageMetadata(*box))
    properties = TensorProperties(dtype=state[0])
    if _STRIDES in vars(properties) and len(state) > _STRIDES_AT:
        setattr(properties, _STRIDES, _strides(state[_STRIDES_AT], size))
    return TensorStorageMetadata(properties, size, found)


def _check_complete(name, about, places):
    """Checks that the parts of a tensor are all of it, and stored."""
    if isinstance(about, BytesStorageMetadata):
        return
    count, starts = 0, set()
    for chunk in about.chunks:
        shape = zip(chunk.offsets, chunk.sizes, about.size, strict=True)
        if any(start + size > whole for start, size, whole in shape):
            raise ValueError(f"a part of {name!r} is outside of it")
        if prod(chunk.sizes):
            starts.add(tuple(chunk.offsets))
            count += 1
        if MetadataIndex(name, chunk.offsets) not in places:
            raise ValueError(f"a part of {name!r} is stored nowhere")
    held = sum(prod(chunk.sizes) for chunk in about.chunks)
    if held != prod(about.size) or len(starts) < count:
        raise ValueError(f"the parts of {name!r} are not all of it")


def _check_files(path, places, files):
    """Checks that all stored tensors lie in files of the folder."""
    lengths = {}
    for place in places.values():
        name = place.relative_path
        if name not in lengths:
            if files is not None and name not in files:
                raise ValueError(f"it names {name!r}, which nothing verifies")
            lengths[name] = regular_file(path, name).stat().st_size
        if place.offset + place.length > lengths[name]:
            raise ValueError(f"{name} ends before what it is to hold")


def _place(said):
    fields = _fields(said, "_StorageInfo")
    transforms = fields.get("transform_descriptors")
    if transforms is not None:
        transforms = [_text(each) for each in _list(transforms)]
    name = _text(fields.get("relative_path"))
    begin, length = (_count(fields.get(n)) for n in ("offset", "length"))
    return _StorageInfo(name, begin, length, transforms)


def _size(said):
    """Returns a shape."""
    is_size = isinstance(said, _Said) and said.kind == "Size" and said.arguments
    if not (is_size and isinstance(said.arguments[0], tuple | list)):
        raise ValueError("a shape is missing")
    return torch.Size([_count(each) for each in said.arguments[0]])


def _strides(said, size):
    """Returns how far apart in memory neighbours of each dimension are; None if unsaid."""
    if said is None:
        return None
    if not isinstance(said, tuple) or len(said) != len(size):
        raise ValueError("strides are not those of a shape")
    return tuple(map(_count, said))


def _count(said):
    if type(said) is not int or not 0 <= said < 2**63:
        raise ValueError("a number is missing or out of range")
    return said


def _text(said):
    if type(said) is not str:
        raise ValueError("a name is missing")
    return said


def _step(said):
    """Returns a step of the path to an entry."""
    return _count(said) if type(said) is int else _text(said)


def _dict(said):
    if not isinstance(said, dict):
        raise ValueError("a table is missing")
    return said


def _list(said):
    if not isinstance(said, tuple | list):
        raise ValueError("a list is missing")
    return said
