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
from distir.lowering.template.checkpoints import (
    MANIFEST,
    CheckpointError,
    folder_of,
    steps_in,
    verified,
)

if TYPE_CHECKING:
    import torch

_METADATA = ".metadata"
_MODEL = "model."


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
        stored = FileSystemReader(path).read_metadata().state_dict_metadata
    except Exception as error:  # a pickle raises anything
        raise DistIRError(
            f"{path} is no checkpoint that can be read: {_METADATA}: {error}"
        ) from error
    tensors = {
        key: torch.empty(about.size, dtype=about.properties.dtype)
        for key, about in stored.items()
        if isinstance(about, TensorStorageMetadata)
    }
    of_model = {key: t for key, t in tensors.items() if key.startswith(_MODEL)}
    wanted = of_model or tensors
    if not wanted:
        raise DistIRError(f"{path} holds no tensors, but {listed(sorted(stored))}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process
            load(dict(wanted), checkpoint_id=path, no_dist=True)
    except (Exception, CheckpointException) as error:
        first = next((line for line in str(error).splitlines()[::-1] if line), error)
        raise DistIRError(f"{path} cannot be read: {first}") from error
    return {key.removeprefix(_MODEL): value for key, value in wanted.items()}


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
        if not (path / _METADATA).exists() and (steps := steps_in(path)):
            path = folder_of(path, steps[-1])
        if (path / MANIFEST).exists():
            verified(path)
    if not (path / _METADATA).exists():
        raise DistIRError(
            f"{path} is neither a checkpoint of torch.distributed.checkpoint nor a folder of "
            f"checkpoints: it has no {_METADATA}"
        )
    return path


@contextlib.contextmanager
def _shown() -> Generator[None]:
    """A context manager that turns errors about a checkpoint into errors for users."""
    try:
        yield
    except CheckpointError as error:
        raise DistIRError(str(error)) from error
