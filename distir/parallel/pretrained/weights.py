"""
The weights that the user passes to `parallelize`: files, a folder of files, or a
checkpoint.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from torch import nn

from distir.errors import DistIRError
from distir.parallel.pretrained.stored import InBoxes, InFile, InMemory, StoredWeight
from distir.parallel.pretrained.transformers_names import (
    by_names_of_model,
    is_of_transformers,
)
from distir.parallel.weights import names_of
from distir.runtime import tensors
from distir.runtime.runtime import ProgramError

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


def open_weights(path: str | Path, source: nn.Module) -> dict[str, StoredWeight]:
    """
    Returns the stored tensors of the parameters and buffers of a module by their first
    names, without reading them. `path` is a file of tensors, a folder of safetensors
    files, with an index or without, or a checkpoint of torch.distributed.checkpoint.
    Leaves out parameters without a stored tensor, with a warning on rank 0. Every rank
    must call this function. Raises DistIRError, on every rank, if a rank cannot use the
    weights.
    """
    found: dict[str, StoredWeight] = {}
    said: str | None = None
    try:
        found = _of_module(Path(path), source)
    except (tensors.FileError, ProgramError, DistIRError) as error:
        said = f"parallelize: weights: {error}"
    except OSError as error:
        said = f"parallelize: weights: cannot read {path}: {error.strerror}"
    every: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, said)
    failed = [each for each in every if each is not None]
    if failed:
        raise DistIRError(said or failed[0])
    missing = [name for name in names_of(source) if name not in found]
    if missing and dist.get_rank() == 0:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        warnings.warn(
            f"parallelize: {path} lacks {len(missing)} of the parameters ({shown}); they "
            f"begin with the module's values, or are drawn from the seed if it has none",
            stacklevel=3,
        )
    return found


def _of_module(path: Path, source: nn.Module) -> dict[str, StoredWeight]:
    stored: Mapping[str, StoredWeight] = _opened(path)
    own = {name: each for name, each in stored.items() if isinstance(each, InBoxes)}
    if own and is_of_transformers(source):
        stored = by_names_of_model(source, own)
    found: dict[str, StoredWeight] = {}
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in (*source.named_parameters(), *source.named_buffers())
    }
    aliases = names_of(source)
    for name, shape in shapes.items():
        known = [each for each in aliases.get(name, [name]) if each in stored]
        if not known:
            continue
        found[name] = stored[known[0]]
        if found[name].shape != shape:
            raise DistIRError(
                f"{path} has {known[0]!r} with shape {list(found[name].shape)}, and the "
                f"module has {list(shape)}; make the module with the configuration of "
                f"the weights"
            )
    if not any(name in found for name in aliases):
        raise DistIRError(
            f"{path} has none of the module's parameters, such as {list(aliases)[:3]}; it "
            f"has {list(stored)[:3]}"
        )
    return found


def _opened(path: Path) -> Mapping[str, StoredWeight]:
    """Returns the tensors in a file, a folder or a checkpoint by their names there."""
    if not path.is_dir():
        if path.suffix != ".safetensors":
            return {name: InMemory(t) for name, t in tensors.load(path).items()}
        return _in_file(path)
    if not any(path.glob("*.safetensors")):
        # PyTorch's checkpoints take long to import.
        from distir.runtime.storage import stored_tensors

        return stored_tensors.load(path)
    index = path / _INDEX
    if index.exists():
        try:
            places: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
        except (ValueError, KeyError) as error:
            raise DistIRError(f"{index} is no index of safetensors files") from error
        files = {name: _in_file(path / name) for name in sorted(set(places.values()))}
        lost = [name for name, file in places.items() if name not in files[file]]
        if lost:
            raise DistIRError(
                f"{path / places[lost[0]]} has no {lost[0]!r}, which {index.name} says; "
                f"copy the folder again"
            )
        return {name: files[file][name] for name, file in places.items()}
    one = path / _SINGLE
    every = [one] if one.exists() else sorted(path.glob("*.safetensors"))
    return {name: each for file in every for name, each in _in_file(file).items()}


def _in_file(path: Path) -> dict[str, InFile]:
    try:
        entries = tensors.entries(path)
    except ValueError as error:
        raise DistIRError(f"{path} is not a safetensors file: {error}") from error
    return {
        name: InFile(path, dtype, shape, begin)
        for name, (dtype, shape, begin, _) in entries.items()
    }
