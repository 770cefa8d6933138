"""
Reads whole tensors from checkpoints in the format of torch.distributed.checkpoint (DCP).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from distir.errors import DistIRError, listed
from distir.lowering.template.checkpoints import MANIFEST, CheckpointError, verified
from distir.lowering.template.stored_tensors import METADATA, found, names_of

if TYPE_CHECKING:
    import torch


def read_model(path: Path) -> dict[str, torch.Tensor]:
    """
    Returns parameters and buffers by their names in the module, from a checkpoint of DCP:
    what it has under `model`, or everything if it has nothing there. `path` is the
    checkpoint, or the folder of checkpoints of `distir run`, whose latest one is taken and
    verified first. Raises DistIRError.
    """
    import torch
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    path = _found(path)
    try:
        metadata = FileSystemReader(path).read_metadata()
    except Exception as error:  # a pickle raises anything
        raise DistIRError(
            f"{path} is no checkpoint that can be read: {METADATA}: {error}"
        ) from error
    stored, names = metadata.state_dict_metadata, names_of(metadata)
    wanted = {
        key: torch.empty(about.size, dtype=about.properties.dtype)
        for key, about in stored.items()
        if key in names and isinstance(about, TensorStorageMetadata)
    }
    if not wanted:
        raise DistIRError(f"{path} holds no tensors, but {listed(sorted(stored))}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process
            load(dict(wanted), checkpoint_id=path, no_dist=True)
    except (Exception, CheckpointException) as error:
        first = next((line for line in str(error).splitlines()[::-1] if line), error)
        raise DistIRError(f"{path} cannot be read: {first}") from error
    return {names[key]: value for key, value in wanted.items()}


def _found(path: Path) -> Path:
    """
    Returns the path of the checkpoint that a path means, after its files were verified.
    """
    if not path.is_dir():
        raise DistIRError(
            f"{path} is a file, not the folder of a checkpoint; a program or plan is exported "
            f"with --to dtensor"
            if path.exists()
            else f"there is no folder {path}; give that of a checkpoint"
        )
    with _shown():
        path = found(path)
        if (path / MANIFEST).exists():
            verified(path)
    return path


@contextlib.contextmanager
def _shown() -> Generator[None]:
    """A context manager that turns errors about a checkpoint into errors for users."""
    try:
        yield
    except CheckpointError as error:
        raise DistIRError(str(error)) from error
