"""
Reads the metadata of a checkpoint of torch.distributed.checkpoint (DCP) safely.

The file `.metadata` is a pickle, and loading a pickle may call any function. This
module loads it with stand-ins for the classes that DCP writes, and refuses a pickle
that names any other class. It checks the contents before it makes DCP's objects. A
malicious file can thus describe a wrong checkpoint, but it cannot run code, or make
DistIR read other files.
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
"""The name of the file that marks a folder as a checkpoint of DCP."""

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
    # PyTorch 2.2 and earlier have two of the classes here.
    (f"{_SHARDS}.sharded_tensor.metadata", "TensorProperties"): "TensorProperties",
    (f"{_SHARDS}.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"): "",
    ("torch", "Size"): "Size",
    ("torch.serialization", "_get_layout"): "",
    # The path that the checkpoint was written to.
    **{
        (module, f"{pure}{kind}Path"): ""
        for module in ("pathlib", "pathlib._local")
        for pure in ("", "Pure")
        for kind in ("", "Posix", "Windows")
    },
    ("collections", "OrderedDict"): "dict",
    # Python before 3.11.4 writes the memory format as getattr(class, name). The stand-in
    # gets nothing: it is a class that nobody uses, like the memory format.
    **{(module, "getattr"): "" for module in ("builtins", "__builtin__")},
}
"""
The classes that DCP's pickles name, with the kinds of their stand-ins; an empty text
stands for a class that is not used.
"""

_STRIDES, _STRIDES_AT = "strides", 5
"""
The property of a tensor that PyTorch 2.15 added, and its index in the state of the
properties.
"""

_STORING = ("PUT", "BINPUT", "LONG_BINPUT")


class CheckpointError(runtime.ProgramError):
    """
    Raised if a checkpoint cannot be read or written. The message gives the reason.
    """


class Reader(dcp.FileSystemReader):
    """
    Reads a checkpoint. The metadata is read once for all tensors. `files`, if given,
    lists the verified files; no other file is read.
    """

    def __init__(self, path, files=None):
        super().__init__(path)
        self._files, self._known = files, None

    def read_metadata(self, *args, **kwargs):
        """
        Returns the metadata of the checkpoint. Raises CheckpointError if it cannot be
        used.
        """
        if self._known is None:
            self._known = read_metadata(self.path, self._files)
            self._known.storage_meta = StorageMeta(load_id=self.load_id)
        return self._known


def read_metadata(path, files=None):
    """
    Returns the metadata of the checkpoint in folder `path`. Raises CheckpointError
    unless all tensors are complete and stored in files of the folder. If `files` is
    given, all these files must be in `files`.
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
    Returns the path of file `name` in `folder`. Raises ValueError if the name leads out
    of the folder, also by a link, or if the file is not a regular file (for example, a
    device or a pipe). Raises OSError if there is no such file.
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
    """
    Loads a pickle with stand-ins for the known classes. Raises ValueError for any other
    class.
    """

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
        # New classes for each pickle, because a pickle may change its classes.
        return self._made.setdefault(
            (module, name),
            type(name, (_Said,), {"kind": _CLASSES[module, name]}),
        )


class _Said:
    """
    A stand-in for an object in a pickle. It holds the arguments of the object's class,
    and the object's state.
    """

    kind, arguments, state = "", (), None

    def __new__(cls, *arguments):
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __setstate__(self, state):
        self.__dict__["state"] = state


def _fields(said, kind):
    """
    Returns the fields by name of a stand-in of kind `kind`. Raises ValueError for
    anything else.
    """
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
    """
    Returns DCP's description of an entry of a checkpoint. Raises ValueError if it is
    malformed.
    """
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
    """
    Raises ValueError unless the parts of a tensor cover all of it, and each part is
    stored.
    """
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
    """
    Raises ValueError unless all stored tensors are inside of files of the folder. If
    `files` is given, all these files must be in `files`.
    """
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
    """Returns a shape from its stand-in. Raises ValueError for anything else."""
    is_size = isinstance(said, _Said) and said.kind == "Size" and said.arguments
    if not (is_size and isinstance(said.arguments[0], tuple | list)):
        raise ValueError("a shape is missing")
    return torch.Size([_count(each) for each in said.arguments[0]])


def _strides(said, size):
    """
    Returns the strides of a tensor, or None if the checkpoint has none. Raises
    ValueError if their number does not fit the shape `size`.
    """
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
    """Returns a part of the path to an entry: an index or a name."""
    return _count(said) if type(said) is int else _text(said)


def _dict(said):
    if not isinstance(said, dict):
        raise ValueError("a table is missing")
    return said


def _list(said):
    if not isinstance(said, tuple | list):
        raise ValueError("a list is missing")
    return said
