"""
Reads whole tensors from checkpoints in the format of torch.distributed.checkpoint
(DCP).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distir.errors import DistIRError, listed
from distir.runtime.storage.checkpoints import MANIFEST, reason, verified
from distir.runtime.storage.stored_metadata import CheckpointError, Reader
from distir.runtime.storage.stored_tensors import found, names_of

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.metadata import Metadata


def read_model(path: Path) -> dict[str, torch.Tensor]:
    """
    Returns the parameters and buffers of a checkpoint, by their names in the module.

    The checkpoint is in the format of torch.distributed.checkpoint (DCP). Only the
    tensors under the key `model` are returned, or all tensors if there is no such key.
    `path` is the checkpoint, or the folder of checkpoints of `distir run`. In such a
    folder, the function verifies and reads the latest checkpoint. Raises DistIRError if
    the checkpoint cannot be read or holds no tensors.
    """
    import torch
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    with _shown():
        path, files = _found(path)
        reader: Any = Reader(path, files)
        metadata: Metadata = reader.read_metadata()
    stored, names = metadata.state_dict_metadata, names_of(metadata)
    try:
        wanted = {
            key: torch.empty(about.size, dtype=about.properties.dtype)
            for key, about in stored.items()
            if key in names and isinstance(about, TensorStorageMetadata)
        }
    except RuntimeError as error:  # a tensor larger than the memory
        raise DistIRError(f"{path} cannot be read: {error}") from error
    if not wanted:
        raise DistIRError(f"{path} holds no tensors, but {listed(sorted(stored))}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about having only one process
            load(dict(wanted), storage_reader=reader, no_dist=True)
    except (Exception, CheckpointException) as error:
        raise DistIRError(f"{path} cannot be read: {reason(error)}") from error
    return {names[key]: value for key, value in wanted.items()}


def _found(path: Path) -> tuple[Path, Mapping[str, Any] | None]:
    """
    Returns the folder of the checkpoint, which `path` is or contains, and the
    checkpoint's files. A checkpoint that lists its files is verified; if the checkpoint
    has no list of files, the second result is None. Raises DistIRError if `path` is not
    a folder.
    """
    if not path.is_dir():
        raise DistIRError(
            f"{path} is a file, not the folder of a checkpoint; a program or plan is exported "
            f"with --to dtensor"
            if path.exists()
            else f"there is no folder {path}; give that of a checkpoint"
        )
    path = found(path)
    if (path / MANIFEST).exists():
        return path, verified(path)["files"]
    return path, None


@contextlib.contextmanager
def _shown() -> Generator[None]:
    """Returns a context manager that turns each CheckpointError into a DistIRError."""
    try:
        yield
    except CheckpointError as error:
        raise DistIRError(str(error)) from error
