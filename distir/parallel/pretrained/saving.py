"""
Writes a model of transformers in several files. Each rank writes its share of the
files, so that no rank holds the whole model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from distir.errors import DistIRError
from distir.parallel.pretrained.transformers_names import is_of_transformers
from distir.parallel.weights import whole_tensor
from distir.system.output_files import replaced, write_text

_SMALL = 1 << 22
"""A model of at most so many bytes is written as one file."""

_OPTIONS = {"max_shard_size", "variant", "save_original_format"}
"""The options of `save_pretrained` that `save_in_shards` takes."""

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20}
_UNITS["GIB"] = 1 << 30

Converted = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def saves_in_shards(source: nn.Module, options: Mapping[str, Any]) -> bool:
    """
    Whether `save_in_shards` can write this module with these options of
    `save_pretrained`: a model of transformers without adapters and quantizers, in which
    each tensor can be converted to the format of files by itself.
    """
    if not is_of_transformers(source) or not options.keys() <= _OPTIONS:
        return False
    if getattr(source, "_hf_peft_config_loaded", False):
        return False
    if getattr(source, "hf_quantizer", None) is not None:
        return False
    state = _on_meta(_named_once(source))
    convert = _conversion(source, options)
    together = _shapes(convert(dict(state)))
    if together == _shapes(state):
        return True
    apart: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        apart |= convert({name: tensor})
    return _shapes(apart) == together


@dataclass
class _File:
    """
    A file of weights. `writer` is the rank that writes the file, and `names` are its
    parameters and buffers, by their names in the module.
    """

    writer: int
    size: int = 0
    names: list[str] = field(default_factory=list[str])


def save_in_shards(
    named: Mapping[str, torch.Tensor],
    source: nn.Module,
    folder: Path,
    options: Mapping[str, Any],
) -> None:
    """
    Writes the module with its current values to `folder`, as `save_pretrained` of
    `source` does with `options`. `named` has this rank's parts. One of the ranks with
    parts of a file's tensors writes the file, which is no larger than `max_shard_size`
    (1 GB by default) or than one tensor. A rank holds one file at a time besides its
    parts. Every rank must call this function. Raises DistIRError, on every rank, if a
    rank cannot write.
    """
    state = _named_once(source)
    every: list[set[str]] = [set()] * dist.get_world_size()
    dist.all_gather_object(every, {name for name in state if name in named})
    limit = _bytes(options.get("max_shard_size", "1GB"))
    files = _files(state, every, limit)
    _raise_together(_begun(source, folder, options) if dist.get_rank() == 0 else None)
    convert, places = _conversion(source, options), dict[str, str]()
    failed: str | None = None
    for number, file in enumerate(files):
        tensors = _brought(file, named, state, every)
        suffix = "" if len(files) == 1 else f"-{number + 1:05}-of-{len(files):05}"
        name = _file_name(options, suffix)
        if file.writer == dist.get_rank():
            tensors = convert(tensors)
            places |= dict.fromkeys(tensors, name)
            failed = _written(folder / name, tensors) or failed
        del tensors
    _raise_together(failed)
    maps: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(maps, places)
    if dist.get_rank() == 0 and len(files) > 1:
        weight_map = {name: file for own in maps for name, file in own.items()}
        total = sum(file.size for file in files)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        path = folder / f"{_file_name(options, '')}.index.json"
        write_text(path, json.dumps(index, indent=2, sort_keys=True) + "\n")
    dist.barrier()


def _raise_together(failed: str | None) -> None:
    """Raises DistIRError on every rank if any rank passes a message `failed`."""
    every: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, failed)
    found = [each for each in every if each is not None]
    if found:
        raise DistIRError(found[0])


def _begun(source: Any, folder: Path, options: Mapping[str, Any]) -> str | None:
    """
    Writes the configuration of a model to a folder, and removes the weights that an
    earlier call wrote there. Returns a message on failure, else None.
    """
    if folder.exists() and not folder.is_dir():
        return f"save_pretrained: {folder} is a file; give the name of a folder"
    try:
        source.save_pretrained(folder, state_dict={})
        for name in (_file_name(options, ""), f"{_file_name(options, '')}.index.json"):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        return f"save_pretrained: cannot write to {folder}: {error}"
    return None


def _named_once(source: nn.Module) -> dict[str, torch.Tensor]:
    """
    Returns the tensors that files of the model contain, by name. A tied tensor appears
    once, under the name that transformers reads.
    """
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    state = source.state_dict(keep_vars=True)
    ignored = getattr(source, "_keys_to_ignore_on_save", None) or ()
    # Tensors are compared by their memory, which those on the meta device have not.
    stand_ins = {id(tensor): torch.zeros(1) for tensor in state.values()}
    given = {n: stand_ins[id(t)] for n, t in state.items() if n not in ignored}
    kept = remove_tied_weights_from_state_dict(given, source)  # pyright: ignore[reportArgumentType]
    return {name: state[name] for name in kept}


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}


def _on_meta(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in state.items()
    }


def _conversion(source: nn.Module, options: Mapping[str, Any]) -> Converted:
    """
    Returns the function that converts the module's tensors to the format of files.
    """
    from transformers.core_model_loading import revert_weight_conversion

    if not options.get("save_original_format", True):
        return dict

    def converted(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return revert_weight_conversion(cast(Any, source), state)

    return converted


def _files(
    state: Mapping[str, torch.Tensor], every: Sequence[set[str]], limit: int
) -> list[_File]:
    """
    Returns the files for the tensors in `state`. `every` has, for each rank, the names
    of the tensors whose parts it holds. Ranks with parts of the same tensors divide
    these tensors into files of equal size, of at most `limit` bytes.
    """
    sizes = {name: t.numel() * t.element_size() for name, t in state.items()}
    if sum(sizes.values()) <= min(_SMALL, limit):
        return [_File(0, sum(sizes.values()), list(state))]
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in state:
        holders = [rank for rank, names in enumerate(every) if name in names]
        groups.setdefault(tuple(holders or [0]), []).append(name)
    files: list[_File] = []
    for ranks, names in groups.items():
        own = min(limit, -(-sum(sizes[n] for n in names) // len(ranks)))
        made = [_File(ranks[0])]
        for name in names:
            if made[-1].names and made[-1].size + sizes[name] > own:
                made.append(_File(ranks[len(made) % len(ranks)]))
            made[-1].names.append(name)
            made[-1].size += sizes[name]
        files += made
    return files


def _brought(
    file: _File,
    named: Mapping[str, torch.Tensor],
    state: Mapping[str, torch.Tensor],
    every: Sequence[set[str]],
) -> dict[str, torch.Tensor]:
    """
    Returns the whole tensors of a file, on the CPU, on the rank that writes the file.
    Other ranks get an empty dictionary. Every rank must call this function.
    """
    rank, found = dist.get_rank(), dict[str, torch.Tensor]()
    for name in file.names:
        value = whole_tensor(named[name]) if name in named else None
        holders = [r for r, names in enumerate(every) if name in names]
        if holders and file.writer not in holders and rank in (holders[0], file.writer):
            value = _sent(value, holders[0], file.writer, state[name], named)
        if rank == file.writer:
            # What no rank holds does not change: a constant of the programs.
            kept = state[name].detach() if value is None else value
            found[name] = kept.cpu().contiguous()
    return found


def _sent(
    value: torch.Tensor | None,
    source: int,
    target: int,
    like: torch.Tensor,
    named: Mapping[str, torch.Tensor],
) -> torch.Tensor | None:
    """
    Sends a tensor from the rank `source` to the rank `target`. Returns the tensor on
    `target`, and None on `source`.
    """
    if dist.get_rank() == source:
        assert value is not None
        value = value.contiguous()
        dist.send(torch.view_as_real(value) if value.is_complex() else value, target)
        return None
    device = next(iter(named.values())).device
    value = torch.empty(like.shape, dtype=like.dtype, device=device)
    dist.recv(torch.view_as_real(value) if value.is_complex() else value, source)
    return value


def _file_name(options: Mapping[str, Any], suffix: str) -> str:
    variant = options.get("variant")
    middle = "" if variant is None else f".{variant}"
    return f"model{middle}{suffix}.safetensors"


def _written(path: Path, tensors: dict[str, torch.Tensor]) -> str | None:
    """Writes a file of tensors. Returns a message on failure, else None."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with replaced(path) as partial:
            save_file(tensors, partial, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        return f"save_pretrained: cannot write {path}: {error}"
    return None


def _bytes(size: int | str) -> int:
    """
    Returns a size such as 500 or "5GB" in bytes. Raises DistIRError for any other text.
    """
    if isinstance(size, int) and size > 0:
        return size
    text = str(size).upper().replace(" ", "")
    for unit, factor in _UNITS.items():
        number = text.removesuffix(unit)
        if number != text and number.isdecimal() and int(number):
            return int(number) * factor
    raise DistIRError(
        f"save_pretrained: max_shard_size is a number of bytes, or a text such as 5GB, and "
        f"not {size!r}"
    )
