"""Checkpoints that others wrote are read without running what is in them."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
)
from torch.distributed.checkpoint.state_dict_saver import save

import distir
from distir.errors import DistIRError
from distir.runtime import tensors
from distir.runtime.storage import checkpoints
from distir.runtime.storage.stored_metadata import CheckpointError, read_metadata

STATE: dict[str, Any] = {
    "model": {
        "w": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 4),
    },
    "optimizer": {"step": 3, "groups": [{"lr": 0.1}, torch.ones(2)]},
}


pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint as a script of PyTorch writes it."""
    save(STATE, checkpoint_id=tmp_path / "dcp", no_dist=True)
    return tmp_path / "dcp"


@pytest.fixture
def own(checkpoint: Path) -> Path:
    """The same with the manifest that trainings of DistIR add."""
    files = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in checkpoint.iterdir()
    }
    sealed(checkpoint, {"format": checkpoints.FORMAT, "step": 1, "files": files})
    return checkpoint


def sealed(folder: Path, body: Any) -> None:
    """Writes a manifest whose own checksum is right."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    content = {"sha256": digest, "manifest": body}
    (folder / "manifest.json").write_text(json.dumps(content))


def refusal(folder: Path) -> str:
    """Why the weights in a checkpoint are not read, in one paragraph."""
    output = folder.with_name("m.safetensors")
    with pytest.raises(DistIRError) as caught:
        distir.export(folder, output)
    assert not output.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_metadata_is_what_pytorch_reads(checkpoint: Path) -> None:
    ours = read_metadata(checkpoint)
    metadata = FileSystemReader(checkpoint).read_metadata()
    assert ours.state_dict_metadata == metadata.state_dict_metadata
    assert ours.planner_data == metadata.planner_data
    assert ours.storage_data == metadata.storage_data


def test_tables_of_every_kind_are_read(checkpoint: Path) -> None:
    file = checkpoint / ".metadata"
    metadata: Metadata = pickle.loads(file.read_bytes())
    before = dict(metadata.state_dict_metadata)
    metadata.state_dict_metadata = OrderedDict(before)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        file.write_bytes(pickle.dumps(metadata, protocol))
        assert read_metadata(checkpoint).state_dict_metadata == before


def test_enumerations_of_older_pythons_are_read(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 3.11.4 a member of an enumeration was an attribute of its class."""
    file = checkpoint / ".metadata"
    metadata: Metadata = pickle.loads(file.read_bytes())

    def reduced(member: Enum, _: int) -> tuple[Any, ...]:
        return getattr, (type(member), member.name)

    monkeypatch.setattr(Enum, "__reduce_ex__", reduced)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        file.write_bytes(pickle.dumps(metadata, protocol))
        assert b"getattr" in file.read_bytes()
        ours = read_metadata(checkpoint)
        assert ours.state_dict_metadata == metadata.state_dict_metadata
        assert ours.storage_data == metadata.storage_data


class Calls:
    """An object whose pickle calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


EVIL = Calls(subprocess.call, ["touch", "PWNED"])

CHANGED_CLASS = (
    # Metadata.__setattr__ = Size, by the state of a class.
    b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n"
    b"N}X\x0b\x00\x00\x00__setattr__ctorch\nSize\ns\x86b."
)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(EVIL),
        pickle.dumps(Calls(eval, "open('PWNED', 'w')")),
        pickle.dumps(Calls(torch.load, "PWNED")),
        pickle.dumps({"w": EVIL}),
        b"ctorch\nload\n.",
        b"cos\nsystem\n(S'touch PWNED'\ntR.",
        b"(S'touch PWNED'\nios\nsystem\n.",
        b"ctorch.distributed.checkpoint.metadata\nos.system\n(S'touch PWNED'\ntR.",
        b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR.",
        # getattr(Metadata, "__setattr__"), which must be no function of a class.
        b"cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.metadata\nMetadata\n"
        b"S'__setattr__'\ntR.",
        CHANGED_CLASS,
        b"\x80\x02r\xff\xff\xff\x7f.",  # a table of 2**31 entries
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a text of 2**63 bytes
        b"\x82\x01.",
        b"P1\n.",
        b"",
        pickle.dumps([1, 2]),
        pickle.dumps(STATE["model"]["w"].dtype),
    ],
)
def test_a_pickle_calls_nothing(
    content: bytes, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    (checkpoint / ".metadata").write_bytes(content)
    assert ".metadata: " in refusal(checkpoint)
    assert not Path("PWNED").exists()
    assert Metadata.__setattr__ is object.__setattr__


def changed(checkpoint: Path, change: Callable[[Any], object]) -> None:
    """Changes the metadata of a checkpoint."""
    file = checkpoint / ".metadata"
    metadata: Any = pickle.loads(file.read_bytes())
    change(metadata)
    file.write_bytes(pickle.dumps(metadata))


WHOLE = ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([2, 3]))
"""The one part of the weight of the checkpoint."""


UNTYPED: Any = TensorProperties()
UNTYPED.dtype = "f"


def with_entry(name: Any, about: Any) -> Callable[[Any], None]:
    """Adds an entry to what is said of tensors."""
    return lambda metadata: metadata.state_dict_metadata.update({name: about})


def with_field(name: str, value: Any) -> Callable[[Any], None]:
    """Has a field of the metadata hold something else."""
    return lambda metadata: setattr(metadata, name, value)


def with_weight(name: str, value: Any) -> Callable[[Any], None]:
    """Has a field of what is said of the weight hold something else."""
    return lambda metadata: setattr(
        metadata.state_dict_metadata["model.w"], name, value
    )


def placed(name: str) -> Callable[[Any], None]:
    """Has all values stored in a file of that name."""

    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = name

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_entry("x", 3), "TensorStorageMetadata is missing"),
        (with_entry(3, 3), "a name is missing"),
        (with_field("state_dict_metadata", None), "a table is missing"),
        (with_field("storage_data", None), "a table is missing"),
        (with_field("storage_data", {}), "stored nowhere"),
        (with_field("planner_data", {"a": (0.5,)}), "a name is missing"),
        (with_weight("size", (2, 3)), "a shape is missing"),
        (with_weight("size", torch.Size([2, 4])), "not all of it"),
        (with_weight("size", torch.Size([2**62, 9])), "not all of it"),
        (with_weight("size", torch.Size([6])), "another number of dimensions"),
        (with_weight("size", torch.Size([1, 3])), "outside of it"),
        (with_weight("properties", None), "no element type"),
        (with_weight("properties", UNTYPED), "no element type"),
        (with_weight("chunks", None), "no list of its parts"),
        (with_weight("chunks", []), "not all of it"),
        (with_weight("chunks", 2 * [WHOLE]), "not all of it"),
        (placed("../../../../../etc/passwd"), "leads out of the folder"),
        (placed("/etc/passwd"), "leads out of the folder"),
        (placed("/dev/zero"), "leads out of the folder"),
        (placed("a\0b"), "not the name of a file"),
        (placed(""), "not the name of a file"),
        (placed("none"), "No such file"),
        (placed("x" * 300), "File name too long"),
        (placed(".."), "leads out of the folder"),
        (placed("."), "not a file with data"),
        (placed(".metadata"), "ends before what it is to hold"),
    ],
)
def test_metadata_that_says_what_cannot_be(
    change: Callable[[Any], object], message: str, checkpoint: Path
) -> None:
    changed(checkpoint, change)
    assert message in refusal(checkpoint)


def test_links_and_pipes_are_no_files_of_a_checkpoint(checkpoint: Path) -> None:
    (data,) = checkpoint.glob("*.distcp")
    elsewhere = checkpoint.with_name("elsewhere")
    data.rename(elsewhere)
    for target, message in (
        (elsewhere, "leads out of the folder"),
        (Path("/dev/zero"), "leads out of the folder"),
        (data, "cannot be read"),  # a link to itself
    ):
        data.symlink_to(target)
        assert message in refusal(checkpoint)
        data.unlink()
    os.mkfifo(data)
    assert "not a file with data" in refusal(checkpoint)
    data.unlink()
    data.mkdir()
    assert "not a file with data" in refusal(checkpoint)
    data.rmdir()
    # A link within the folder leads to a file that is there.
    shutil.copy(elsewhere, checkpoint / "data")
    data.symlink_to(checkpoint / "data")
    distir.export(checkpoint, checkpoint.with_name("m.safetensors"))


NAME = "__0_0.distcp"


def test_the_data_is_tensors_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    data = checkpoint / NAME
    torch.save(EVIL, data)
    size = data.stat().st_size

    def whole(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.offset, info.length = 0, size

    changed(checkpoint, whole)
    message = refusal(checkpoint)
    assert "call, which tensors do not consist of; it may run code" in message
    torch.save([torch.ones(9)], data)
    data.write_bytes(data.read_bytes().ljust(size, b"\0"))
    refusal(checkpoint)
    data.write_bytes(bytes(size))
    assert "damaged, or holds other things" in refusal(checkpoint)
    assert not Path("PWNED").exists()


def is_other(body: Any) -> Callable[[Any], Any]:
    """A manifest that is something else."""
    return lambda _: body


def says(**facts: Any) -> Callable[[Any], Any]:
    """A manifest that says something else; None: that it does not say."""
    return lambda body: {k: v for k, v in (body | facts).items() if v is not None}


def lists(name: str, facts: Any) -> Callable[[Any], Any]:
    """A manifest that says this of a file; None: that does not list it."""

    def change(body: Any) -> Any:
        named = body["files"] | {name: facts}
        return body | {"files": {k: v for k, v in named.items() if v is not None}}

    return change


FACTS = {"bytes": 1, "sha256": "x"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (is_other([1]), "structure"),
        (is_other("text"), "structure"),
        (is_other(None), "structure"),
        (says(format=None), "structure"),
        (says(format=["x"]), "structure"),
        (says(format="distir checkpoint 9"), "checkpoint 9"),
        (says(step=None), "structure"),
        (says(step="x"), "structure"),
        (says(step=True), "structure"),
        (says(step=-1), "structure"),
        (says(files=None), "structure"),
        (says(files=[NAME]), "structure"),
        (says(files={}), "says nothing of .metadata"),
        (lists(".metadata", None), "says nothing of .metadata"),
        (lists(NAME, None), "which nothing verifies"),
        (lists(NAME, 3), "how long"),
        (lists(NAME, {"bytes": 1}), "how long"),
        (lists(NAME, FACTS | {"bytes": "x"}), "instead of x"),
        (lists("../../../etc/passwd", FACTS), "leads out"),
        (lists("/dev/zero", FACTS), "leads out"),
        (lists("a\0b", FACTS), "not the name of a file"),
        (lists("", FACTS), "not the name of a file"),
        (lists("\ud800", FACTS), "surrogates"),
        (lists("none", FACTS), "No such file"),
    ],
)
def test_manifests_of_another_structure(
    change: Callable[[Any], Any], message: str, own: Path
) -> None:
    body = json.loads((own / "manifest.json").read_text())["manifest"]
    sealed(own, change(body))
    assert message in refusal(own)


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", "{}", '{"manifest": {}}', "[" * 10**5, '"\\ud800"']
)
def test_a_file_that_is_no_manifest(text: str, own: Path) -> None:
    (own / "manifest.json").write_text(text)
    assert "manifest.json cannot be used" in refusal(own)


def test_a_manifest_that_is_a_pipe_or_device(own: Path) -> None:
    (own / "manifest.json").unlink()
    os.mkfifo(own / "manifest.json")
    assert "not a file with data" in refusal(own)
    (own / "manifest.json").unlink()
    (own / "manifest.json").symlink_to("/dev/zero")
    assert "leads out of the folder" in refusal(own)


def test_a_sealed_checkpoint_is_read(own: Path) -> None:
    assert checkpoints.verified(own)["step"] == 1
    distir.export(own, own.with_name("m.safetensors"))
    (own / NAME).write_bytes((own / NAME).read_bytes()[::-1])
    with pytest.raises(CheckpointError, match="its SHA-256 is another"):
        checkpoints.verified(own)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_weights_in_a_file_of_torch(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"w{suffix}"
    torch.save({"w": torch.ones(2), "step": 3}, file)
    assert list(tensors.load(file)) == ["w"]
    for content, message in (
        (EVIL, "call, which tensors do not consist of"),
        ({"w": EVIL}, "call, which tensors do not"),
        ([torch.ones(2)], "holds a list"),
        ({"model": {"w": torch.ones(2)}}, "save the state_dict of the module alone"),
    ):
        torch.save(content, file)
        with pytest.raises(tensors.FileError, match=message):
            tensors.load(file)
    assert not Path("PWNED").exists()


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"w": 3},
        {"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 80]}},
        {"w": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 8]}},
        {"w": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}},
    ],
)
def test_damaged_safetensors(header: Any, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    file = tmp_path / "w.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(tensors.FileError):
        tensors.load(file)


def test_weights_in_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.safetensors")
    with pytest.raises(tensors.FileError, match="not a file with data"):
        tensors.load(tmp_path / "w.safetensors")
