"""
Checkpoints in the format of torch.distributed.checkpoint (DCP).

A checkpoint is a folder `step-<number>` that DCP can read. Parameters, and buffers of
modules, are under `model`, and optimizer states under `state`. Each tensor is whole and
has its own name. If several processes have the same part, the first of these processes
writes it, in the background. `manifest.json` has the size and SHA-256 of every file.

The folder is written under a hidden name, flushed to the disk, and then renamed. A
folder with the final name is thus always complete. The previous checkpoint is kept. All
processes need the same file system.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import threading
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from .. import runtime, tensors
from ..output_files import write_text
from .boxes import box_of, boxes
from .folder_lock import FolderLock, LockedError
from .stored_metadata import METADATA, CheckpointError, Reader, regular_file

FORMAT = "distir checkpoint 2"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(0|[1-9][0-9]*)")


class OtherFormatError(CheckpointError):
    """
    Raised if another version of DistIR wrote a checkpoint. The message says how to
    continue.
    """


def steps_in(folder):
    """
    Returns the steps with a checkpoint in `folder`, in ascending order. If there is no
    such folder, returns an empty list. Raises CheckpointError if the folder cannot be
    read.
    """
    try:
        names = [entry.name for entry in Path(folder).iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot read {folder}: {error.strerror}") from error
    return sorted(int(m[1]) for name in names if (m := _NAME.fullmatch(name)))


def folder_of(folder, step):
    """Returns the path of the checkpoint of step `step`."""
    return Path(folder) / f"step-{step}"


def key_of(spec):
    """
    Returns the section of an argument in a checkpoint, `model` or `state`, and its name
    there.
    """
    of_model = spec.role == "parameter" or not (spec.of or spec.counter)
    return "model" if of_model else "state", spec.name


class Stored:
    """A process's part of a tensor, which DCP writes and reads box by box."""

    def __init__(self, spec, mesh, rank, part):
        self.shape, self.part = torch.Size(spec.shape), part
        self.boxes = {
            start: (own, sizes) for start, own, sizes in boxes(spec, mesh, rank)
        }

    def size(self):
        return self.shape

    def __create_chunk_list__(self):
        return [
            ChunkStorageMetadata(torch.Size(start), torch.Size(sizes))
            for start, (_, sizes) in self.boxes.items()
        ]

    def __create_write_items__(self, name, _):
        properties = TensorProperties.create_from_tensor(self.part)
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def box(self, index):
        """Returns the part's elements of the box that DCP's `index` names."""
        return box_of(self.part, *self.boxes[tuple(index.offset)])


class _SavePlanner(dcp.DefaultSavePlanner):
    def lookup_object(self, index):
        return self.state_dict[index.fqn].box(index)


class PartsPlanner(dcp.DefaultLoadPlanner):
    """Makes DCP read a checkpoint into the tensors `parts`, by their keys."""

    def __init__(self, parts):
        super().__init__(flatten_state_dict=False)
        self.parts = parts

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self.state_dict = self.parts

    def lookup_tensor(self, index):
        return self.state_dict[index.fqn].box(index)


class Saver:
    """
    Writes checkpoints of a training in the background, one at a time.

    Every process must create a Saver and call its methods in the same order. Until it
    is closed, no other training can write to the folder. Raises CheckpointError if
    another training writes to the folder already.
    """

    def __init__(self, folder, program, rank):
        self.folder, self.program, self.rank = Path(folder), program, rank
        # A group of its own, so that communication of the steps does not interfere.
        self.group = dist.new_group(backend="gloo")
        self.thread = self.failure = self.lock = None
        self._lock()
        self.previous = max(steps_in(folder), default=None)

    def _lock(self):
        """
        Makes process 0 lock the folder. If this fails, raises CheckpointError on all
        processes.
        """
        fault = None
        if self.rank == 0:
            try:
                self.lock = FolderLock(self.folder)
            except LockedError as error:
                fault = str(error)
            except OSError as error:
                fault = f"cannot write a checkpoint to {self.folder}: {error.strerror}"
        told = [fault]
        dist.broadcast_object_list(told, 0, group=self.group, device="cpu")
        if told[0] is not None:
            raise CheckpointError(told[0])

    def close(self):
        """
        Releases the folder for other trainings, unless a checkpoint is still being
        written.
        """
        if self.lock is not None and (
            self.thread is None or not self.thread.is_alive()
        ):
            self.lock.release()

    def save(self, step, held):
        """
        Starts to write the checkpoint of step `step`. `held` has arguments with this
        process's parts of them; the parts are copied first. When the checkpoint is
        complete, removes all older checkpoints except the previous one. Raises
        CheckpointError if the previous checkpoint could not be written.
        """
        self.finish()
        parts = {"model": {}, "state": {}}
        for spec, part in held:
            mesh = self.program.MESHES.get(spec.mesh)
            writers = [0] if mesh is None else runtime.holders(spec, mesh)
            if self.rank in writers:
                kind, name = key_of(spec)
                own = part.detach().to("cpu", copy=True)
                parts[kind][name] = Stored(spec, mesh, self.rank, own)
        self.thread = threading.Thread(target=self._write, args=(step, parts))
        self.thread.start()

    def finish(self):
        """
        Waits until the checkpoint that was started last is complete. Raises
        CheckpointError if the checkpoint could not be written.
        """
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise CheckpointError(
                f"cannot write a checkpoint to {self.folder}: {reason(failure)}; "
                f"checkpoints of earlier steps are as they were"
            ) from failure

    def _write(self, step, parts):
        partial = self.folder / f".step-{step}.partial"
        try:
            fault = None
            if self.rank == 0:
                fault = _emptied(self.folder, partial)
            # Tells the others whether the folder exists, so that they do not wait in vain.
            told = [fault]
            dist.broadcast_object_list(told, 0, group=self.group, device="cpu")
            if told[0] is not None:
                raise OSError(told[0])
            writer = _CheckpointWriter(partial, step, self.previous, self.rank)
            with quiet():
                dcp.save(
                    parts,
                    storage_writer=writer,
                    planner=_SavePlanner(),
                    process_group=self.group,
                )
            self.previous = step
            runtime.report(f"saved {folder_of(self.folder, step)}")
        except (Exception, CheckpointException) as error:  # which is none of these
            self.failure = error


def _emptied(folder, partial):
    """
    Removes the remains of unfinished checkpoints in `folder` and makes an empty folder
    `partial`. Returns None, or the text of the error if this fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*"):
            shutil.rmtree(left)
        partial.mkdir()
    except OSError as error:
        return str(error)
    return None


def reason(error):
    """
    Returns the reason of an error as text. If DCP reports errors of several processes,
    this is the first cause.
    """
    if isinstance(error, CheckpointException):
        rank, (first, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {reason(first)}"
    return tensors.why(error)


class _CheckpointWriter(dcp.FileSystemWriter):
    """
    Writes a checkpoint with checksums to a hidden folder, and renames the folder when
    all files are complete.
    """

    def __init__(self, partial, step, previous, number):
        super().__init__(partial)
        self.partial, self.step, self.previous = partial, step, previous
        self.number = number

    def write_data(self, plan, planner):
        future = super().write_data(plan, planner)
        names = {result.storage_data.relative_path for result in future.wait()}
        facts = {name: _facts(self.partial / name) for name in names}
        _written(self.partial / f"{self.number}.json", facts)
        return future

    def finish(self, metadata, results):
        super().finish(metadata, results)
        files = {".metadata": _facts(self.partial / ".metadata")}
        for note in sorted(self.partial.glob("*.json")):
            files |= json.loads(note.read_text(encoding="utf-8"))
            note.unlink()
        body = {"format": FORMAT, "step": self.step, "files": files}
        _written(self.partial / MANIFEST, {"sha256": _digest(body), "manifest": body})
        _to_disk(self.partial)
        folder = self.partial.parent
        final = folder_of(folder, self.step)
        if final.exists():  # a corrupt one, which training went back behind
            replaced = folder / f".{final.name}.replaced"
            final.rename(replaced)
            self.partial.rename(final)
            shutil.rmtree(replaced)
        else:
            self.partial.rename(final)
        _to_disk(folder)
        for old in steps_in(folder):
            if old < self.step and old != self.previous:
                shutil.rmtree(folder_of(folder, old))


class quiet:
    """A context that suppresses DCP's own messages."""

    def __enter__(self):
        self.level = logging.getLogger("torch.distributed.checkpoint").level
        logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
        self.caught = warnings.catch_warnings()
        self.caught.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, *error):
        self.caught.__exit__(*error)
        logging.getLogger("torch.distributed.checkpoint").setLevel(self.level)


def _facts(path):
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body):
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _written(path, content):
    """Writes `content` as JSON to `path`, and waits until it is on the disk."""
    write_text(path, json.dumps(content, indent=1))
    _to_disk(path)


def _to_disk(path):
    """Waits until the file or folder at `path` is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def verified(path, share=0, shares=1):
    """
    Returns the manifest of a checkpoint, after checking that its files are unchanged.
    Each of `shares` processes checks its share of the files. Raises CheckpointError if
    a file is missing or differs.
    """
    path = Path(path)
    try:
        text = regular_file(path, MANIFEST).read_text(encoding="utf-8")
        body = _body(json.loads(text))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the checkpoint {path} is incomplete or corrupt: its {MANIFEST} cannot "
            f"be used ({error})"
        ) from error
    if body["format"] != FORMAT:
        raise OtherFormatError(
            f"the checkpoint {path} has the format {body['format']!r}; this version of "
            f"DistIR reads {FORMAT!r}. Go on with the version that wrote it, and take its "
            f"--outputs as the weights of a new run"
        )
    _check_listed(path, body)
    for name in sorted(body["files"])[share::shares]:
        facts = body["files"][name]
        try:
            file = regular_file(path, name)
            size = file.stat().st_size
            digest = _sha256(file) if size == facts["bytes"] else ""
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {path} is incomplete: {name}: {error.strerror}"
            ) from error
        except ValueError as error:
            raise CheckpointError(
                f"the checkpoint {path} is corrupt: {error}"
            ) from error
        if size != facts["bytes"]:
            raise CheckpointError(
                f"the checkpoint {path} is corrupt: {name} has {size} bytes "
                f"instead of {facts['bytes']}"
            )
        if digest != facts["sha256"]:
            raise CheckpointError(
                f"the checkpoint {path} is corrupt: {name} does not have the contents "
                f"that were written (its SHA-256 is another)"
            )
    return body


def _body(content):
    """
    Returns the contents of a manifest of any version. Raises ValueError if its
    structure or its checksum is wrong.
    """
    body = content.get("manifest") if isinstance(content, dict) else None
    if not isinstance(body, dict) or not isinstance(body.get("format"), str):
        raise ValueError("it does not have the structure of one")
    if content.get("sha256") != _digest(body):
        raise ValueError("its checksum is wrong")
    return body


def _check_listed(path, body):
    """
    Raises CheckpointError if a manifest of this version lacks the step, or the size and
    SHA-256 of a file.
    """
    files, step = body.get("files"), body.get("step")
    if not (type(step) is int and step >= 0 and isinstance(files, dict)):
        what = "it does not have the structure of one"
    elif METADATA not in files:
        what = f"it says nothing of {METADATA}"
    else:
        wrong = [
            name
            for name, facts in files.items()
            if not (isinstance(facts, dict) and facts.keys() == {"bytes", "sha256"})
        ]
        if not wrong:
            return
        what = f"it does not say how long {wrong[0][:99]!r} is, and its SHA-256"
    raise CheckpointError(
        f"the checkpoint {path} is incomplete or corrupt: its {MANIFEST} cannot be used "
        f"({what})"
    )


class Checkpoint:
    """
    A checkpoint to continue from. `step` is its step, and `parts` returns its tensors
    under any layout. Every process must create this object.
    """

    def __init__(self, folder, resume, rank):
        """
        Verifies the checkpoint of step `resume` in `folder`, or the latest checkpoint
        if `resume` is "latest". Raises CheckpointError if there is none or it is
        corrupt.
        """
        known = steps_in(folder)
        if not known:
            raise CheckpointError(f"there is no complete checkpoint in {folder}")
        if resume != "latest" and resume not in map(str, known):
            raise CheckpointError(
                f"{folder} has no checkpoint of step {resume}; it has "
                f"{', '.join(map(str, known))}"
            )
        step = known[-1] if resume == "latest" else int(resume)
        self.path, self.rank = folder_of(folder, step), rank
        try:
            body = verified(self.path, rank, dist.get_world_size())
        except OtherFormatError:
            raise  # nothing is wrong with it
        except CheckpointError as error:
            earlier = [s for s in known if s < step]
            raise CheckpointError(f"{error}; {_advice(folder, earlier)}") from error
        dist.barrier()  # every share is intact
        self.step, self.files = body["step"], body["files"]

    def parts(self, specs, meshes):
        """
        Returns this process's parts, by name, of the arguments in `specs` that are
        parameters or states. The checkpoint may contain an argument whole or as the
        tensors that it consists of. Every process must call the method. Raises
        CheckpointError if the checkpoint lacks an argument.
        """
        reader = Reader(self.path, self.files)
        stored = reader.read_metadata().state_dict_metadata
        wanted, found, joined = {}, {}, []
        for spec in specs:
            if spec.role in runtime.KEPT_ROLES:
                mesh = meshes.get(spec.mesh)
                if spec.repacked and ".".join(key_of(spec)) not in stored:
                    pieces = {}
                    for piece in spec.parts():
                        self._check(piece, stored)
                        whole = torch.empty(piece.shape, dtype=spec.dtype, device="cpu")
                        pieces[piece.name] = whole
                        key = ".".join(key_of(piece))
                        wanted[key] = Stored(piece, None, self.rank, whole)
                    joined.append((spec, mesh, pieces))
                    continue
                self._check(spec, stored)
                shape = runtime.local_shape(spec, mesh)
                # Checkpoints do not contain the zeros of the padding.
                made = torch.zeros if spec.padded or spec.flattened else torch.empty
                part = made(shape, dtype=spec.dtype, device="cpu")
                found[spec.name] = part
                key = ".".join(key_of(spec))
                wanted[key] = Stored(spec, mesh, self.rank, part)
        group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        try:
            with quiet():
                dcp.load(
                    {},
                    storage_reader=reader,
                    planner=PartsPlanner(wanted),
                    process_group=group,
                )
        except (Exception, CheckpointException) as error:
            raise CheckpointError(
                f"{self.path} cannot be read: {reason(error)}"
            ) from error
        for spec, mesh, pieces in joined:
            whole = runtime.found(spec, [pieces])
            found[spec.name] = runtime.shard(whole, spec, mesh, self.rank).clone()
        return found

    def _check(self, spec, stored):
        metadata = stored.get(".".join(key_of(spec)))
        if not isinstance(metadata, TensorStorageMetadata):
            raise CheckpointError(
                f"the checkpoint {self.path} has no {spec.role} {spec.name!r}; it is of "
                f"another program or optimizer"
            )
        shape, dtype = tuple(metadata.size), metadata.properties.dtype
        if shape != spec.shape or dtype != spec.dtype:
            raise CheckpointError(
                f"the checkpoint {self.path} holds {spec.name!r} as {dtype} {shape}, but "
                f"the program has {spec.dtype} {spec.shape}"
            )


def _advice(folder, earlier):
    """
    Returns advice for a user whose checkpoint cannot be used: the latest intact
    checkpoint among the steps `earlier`, if there is one.
    """
    for step in reversed(earlier):
        try:
            verified(folder_of(folder, step))
        except CheckpointError:
            continue
        return f"the one of step {step} is intact: --resume {step} goes on from there"
    return "there is no intact earlier one; train from the start in another folder"
