"""
Sharded checkpoints.

A checkpoint is a folder `step-<number>` with a file `rank-<r>.safetensors` from every
process, which holds its parts of parameters and optimizer states (of parts that several
processes hold, the first one writes), and `manifest.json`: the layout of every tensor, the
meshes, and the size and SHA-256 of every file. It is written to a hidden folder, brought
to the disk, and then renamed, so that a folder with that name is always complete; the
previous checkpoint stays. All processes need the same file system.
"""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import torch
import torch.distributed as dist

from . import runtime, tensors

FORMAT = "distir checkpoint 1"
_NAME = re.compile(r"step-(\d+)")


class CheckpointError(runtime.ProgramError):
    """A checkpoint cannot be used or written; the message says why."""


def steps_in(folder):
    """The steps of which the folder has a checkpoint, ascending."""
    try:
        names = [entry.name for entry in Path(folder).iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot read {folder}: {error.strerror}") from error
    return sorted(int(m[1]) for name in names if (m := _NAME.fullmatch(name)))


def folder_of(folder, step):
    """The path of a step's checkpoint."""
    return Path(folder) / f"step-{step}"


def _file(path, rank):
    return path / f"rank-{rank}.safetensors"


def _digest(body):
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _to_disk(path):
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(folder, step, previous, held, meshes, rank, processes):
    """
    Writes the checkpoint of a step and removes those before it but for `previous`, the
    last good one. `held` has (spec, part of this process) by name, `meshes` the meshes'
    specs. Every process calls it.
    """
    folder = Path(folder)
    final = folder_of(folder, step)
    partial = folder / f".{final.name}.partial"
    try:
        if rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(".step-*"):
                shutil.rmtree(left)
            partial.mkdir()
        dist.barrier()
        own = {
            name: part
            for name, (spec, part) in held.items()
            if rank in _holders(spec, meshes)
        }
        path = _file(partial, rank)
        with torch.device("cpu"):
            tensors.save(path, {name: part.cpu() for name, part in own.items()})
        with path.open("rb") as file:
            facts = {
                "bytes": path.stat().st_size,
                "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
                "tensors": {name: _spec_fields(held[name][0]) for name in own},
            }
        note = partial / f"rank-{rank}.json"
        note.write_text(json.dumps(facts), encoding="utf-8")
        _to_disk(path)
        dist.barrier()
        if rank == 0:
            _complete(folder, step, meshes, processes)
            for old in steps_in(folder):
                if old < step and old != previous:
                    shutil.rmtree(folder_of(folder, old))
        dist.barrier()
    except OSError as error:
        raise CheckpointError(
            f"cannot write a checkpoint to {folder}: {error}; checkpoints of earlier "
            f"steps are as they were"
        ) from error


def _complete(folder, step, meshes, processes):
    """Writes the manifest of a checkpoint whose parts are written, and renames it."""
    final = folder_of(folder, step)
    partial = folder / f".{final.name}.partial"
    files, found = [], {}
    for rank in range(processes):
        note = partial / f"rank-{rank}.json"
        facts = json.loads(note.read_text(encoding="utf-8"))
        found |= facts.pop("tensors")
        files.append(facts)
        note.unlink()
    body = {
        "format": FORMAT,
        "step": step,
        "files": files,
        "tensors": found,
        "meshes": {
            name: {"axes": mesh.axes, "ranks": mesh.ranks}
            for name, mesh in meshes.items()
        },
    }
    manifest = partial / "manifest.json"
    manifest.write_text(
        json.dumps({"sha256": _digest(body), "manifest": body}, indent=1),
        encoding="utf-8",
    )
    _to_disk(manifest)
    _to_disk(partial)
    if final.exists():  # a corrupt one, which training went back behind
        replaced = folder / f".{final.name}.replaced"
        final.rename(replaced)
        partial.rename(final)
        shutil.rmtree(replaced)
    else:
        partial.rename(final)
    _to_disk(folder)


def _holders(spec, meshes):
    """The processes that write a tensor, each a different part."""
    return [0] if spec.mesh is None else runtime.holders(spec, meshes[spec.mesh])


def _spec_fields(spec):
    return {
        "role": spec.role,
        "dtype": str(spec.dtype).removeprefix("torch."),
        "shape": spec.shape,
        "mesh": spec.mesh,
        "split": spec.split,
    }


def _spec(name, fields):
    return runtime.Tensor(
        name,
        getattr(torch, fields["dtype"]),
        tuple(fields["shape"]),
        fields["mesh"],
        tuple(tuple((axis, run) for axis, run in dim) for dim in fields["split"]),
        role=fields["role"],
    )


def _verified(path, share=0, shares=1):
    """
    The manifest of a checkpoint whose files are as they were written; of `shares`
    processes each looks at its share of the files. Raises CheckpointError.
    """
    manifest = path / "manifest.json"
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        body = content["manifest"]
        if content["sha256"] != _digest(body):
            raise ValueError("its checksum is wrong")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the checkpoint {path} is incomplete or corrupt: its manifest.json cannot "
            f"be used ({error})"
        ) from error
    if body["format"] != FORMAT:
        raise CheckpointError(
            f"the checkpoint {path} has the format {body['format']!r}; this program reads "
            f"{FORMAT!r}"
        )
    for rank, facts in list(enumerate(body["files"]))[share::shares]:
        file = _file(path, rank)
        try:
            with file.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size != facts["bytes"]:
                    raise CheckpointError(
                        f"the checkpoint {path} is corrupt: {file.name} has {size} bytes "
                        f"instead of {facts['bytes']}"
                    )
                if hashlib.file_digest(stream, "sha256").hexdigest() != facts["sha256"]:
                    raise CheckpointError(
                        f"the checkpoint {path} is corrupt: {file.name} does not have "
                        f"the contents that were written (its SHA-256 is another)"
                    )
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {path} is incomplete: {file.name}: {error.strerror}"
            ) from error
    return body


class Checkpoint:
    """
    A checkpoint to go on from: `step` and, by `part`, its tensors under any layout.
    Every process makes it.
    """

    def __init__(self, folder, resume, rank, processes):
        """`resume` is the number of a step, or `latest`."""
        known = steps_in(folder)
        if not known:
            raise CheckpointError(f"there is no complete checkpoint in {folder}")
        if resume != "latest" and resume not in map(str, known):
            raise CheckpointError(
                f"{folder} has no checkpoint of step {resume}; it has "
                f"{', '.join(map(str, known))}"
            )
        step = known[-1] if resume == "latest" else int(resume)
        self._path = folder_of(folder, step)
        try:
            self._manifest = _verified(self._path, rank, processes)
        except CheckpointError as error:
            earlier = [s for s in known if s < step]
            raise CheckpointError(f"{error}; {_advice(folder, earlier)}") from error
        dist.barrier()  # every share is intact
        self.step = self._manifest["step"]
        with torch.device("cpu"):
            self._files = [
                tensors.load(_file(self._path, r))
                for r in range(len(self._manifest["files"]))
            ]

    def part(self, spec, mesh, rank):
        """A process's part of a tensor, reassembled from what other layouts stored."""
        with torch.device("cpu"):
            known = self._manifest["tensors"]
            if spec.repacked and spec.name not in known:
                whole = runtime.joined(spec, self._whole)
            else:
                whole = self._whole(spec)
            # The file may go while its tensors are in use.
            return runtime.shard(whole, spec, mesh, rank).clone()

    def _whole(self, spec):
        """A whole tensor."""
        fields = self._manifest["tensors"].get(spec.name)
        if fields is None:
            raise CheckpointError(
                f"the checkpoint {self._path} has no {spec.role} {spec.name!r}; it is of "
                f"another program or optimizer"
            )
        stored = _spec(spec.name, fields)
        if stored.shape != spec.shape or stored.dtype != spec.dtype:
            raise CheckpointError(
                f"the checkpoint {self._path} holds {spec.name!r} as {stored.dtype} "
                f"{stored.shape}, but the program has {spec.dtype} {spec.shape}"
            )
        if stored.mesh is None:
            return self._files[0][spec.name]
        over = self._manifest["meshes"][stored.mesh]
        source = runtime.MeshSpec(over["axes"], over["ranks"], [])
        parts = {r: self._files[r][spec.name] for r in runtime.holders(stored, source)}
        return runtime.assemble(parts, stored, source)


def _advice(folder, earlier):
    """What to do about a checkpoint that cannot be used."""
    for step in reversed(earlier):
        try:
            _verified(folder_of(folder, step))
        except CheckpointError:
            continue
        return f"the one of step {step} is intact: --resume {step} goes on from there"
    return "there is no intact earlier one; train from the start in another folder"
