"""
Weights in a checkpoint of torch.distributed.checkpoint (DCP). Each process reads only
its own parts.
"""

import os
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from .. import runtime
from . import checkpoints
from .stored_metadata import METADATA, Reader

_MODEL = "model"


def load(path):
    """
    Returns the tensors of a checkpoint by their names in the module: the tensors under
    `model`, or all tensors if there are none. `path` is a checkpoint, or a folder of a
    training's checkpoints, whose latest one is used. A checkpoint that DistIR wrote is
    verified; each process verifies a share of its files. Raises ProgramError if the
    checkpoint cannot be used.
    """
    path, files = found(path), None
    if (path / checkpoints.MANIFEST).exists():
        own, count = (os.environ.get(n, d) for n, d in (("RANK", 0), ("WORLD_SIZE", 1)))
        files = checkpoints.verified(path, int(own), int(count))["files"]
    reader = Reader(path, files)
    metadata = reader.read_metadata()
    stored = metadata.state_dict_metadata
    return {
        name: StoredTensor(reader, key, stored[key])
        for key, name in names_of(metadata).items()
    }


def names_of(metadata):
    """
    Returns the names of a checkpoint's tensors in the module, by their keys in the
    checkpoint. Only tensors under `model` are included, or all tensors if there are
    none.
    """
    stored = metadata.state_dict_metadata
    keys = [k for k, v in stored.items() if isinstance(v, TensorStorageMetadata)]
    # Names may begin with "model." themselves, so that keys alone do not tell.
    paths = metadata.planner_data or {}
    paths = {key: tuple(map(str, paths.get(key, (key,)))) for key in keys}
    of_model = {
        key: ".".join(path[1:])
        for key, path in paths.items()
        if path[0] == _MODEL and len(path) > 1
    }
    return of_model or {key: key for key in keys}


def found(path):
    """
    Returns the path of a checkpoint: `path` itself if it is a checkpoint, else the
    latest checkpoint in this folder. Raises ProgramError if there is none.
    """
    path = Path(path)
    if not (path / METADATA).exists() and (steps := checkpoints.steps_in(path)):
        path = checkpoints.folder_of(path, steps[-1])
    if not (path / METADATA).exists():
        raise checkpoints.CheckpointError(
            f"{path} is neither a checkpoint of torch.distributed.checkpoint nor a folder of "
            f"checkpoints: it has no {METADATA}"
        )
    return path


class StoredTensor:
    """
    A tensor in a checkpoint, with known shape and type. Its values have not been read.
    """

    def __init__(self, reader, key, about):
        self._reader, self._key = reader, key
        self.shape, self.dtype = tuple(about.size), about.properties.dtype

    def part(self, spec, mesh, rank):
        """Reads the part of argument `spec` that process `rank` of the mesh has."""
        shape = runtime.local_shape(spec, mesh)
        # Checkpoints do not contain the zeros of the padding.
        made = torch.zeros if spec.padded or spec.flattened else torch.empty
        part = made(shape, dtype=self.dtype, device="cpu")
        wanted = {self._key: checkpoints.Stored(spec, mesh, rank, part)}
        try:
            with checkpoints.quiet():
                dcp.load(
                    {},
                    storage_reader=self._reader,
                    planner=checkpoints.PartsPlanner(wanted),
                    no_dist=True,
                )
        except (Exception, CheckpointException) as error:
            raise checkpoints.CheckpointError(
                f"{self._reader.path} cannot be read: {checkpoints.reason(error)}"
            ) from error
        return part

    def whole(self):
        """Reads the whole tensor."""
        return self.part(runtime.Tensor(self._key, self.dtype, self.shape), None, 0)
