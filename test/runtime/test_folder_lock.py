"""One training at a time writes to a folder of checkpoints."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distir.runtime.storage.folder_lock import NAME, FolderLock, LockedError


@contextmanager
def held_by_a_child(folder: Path) -> Generator[int]:
    """Has another process hold the lock, and gives its number."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        FolderLock(folder)
        os.write(writable, b"x")
        signal.pause()
    try:
        assert os.read(readable, 1) == b"x"
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(readable)
        os.close(writable)


def test_another_process_is_named_and_its_end_ends_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with held_by_a_child(folder) as child:
        for _ in range(2):
            with pytest.raises(LockedError) as caught:
                FolderLock(folder)
            assert f"process {child} of host {socket.gethostname()} " in str(
                caught.value
            )
            assert str(folder) in str(caught.value)
    # It was killed, so that its file is there still.
    assert json.loads((folder / NAME).read_text())["pid"] == child
    lock = FolderLock(folder)
    assert json.loads((folder / NAME).read_text())["pid"] == os.getpid()
    lock.release()
    lock.release()
    assert not any(folder.iterdir())


def test_what_was_made_for_the_lock_is_removed(tmp_path: Path) -> None:
    for folder, stays in ((tmp_path / "new", False), (tmp_path, True)):
        FolderLock(folder).release()
        assert folder.exists() == stays
    lock = FolderLock(tmp_path / "new")
    (tmp_path / "new" / "step-1").mkdir()
    lock.release()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["step-1"]


def test_a_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    (tmp_path / NAME).unlink()
    other = FolderLock(tmp_path)
    lock.release()  # which leaves the file of the other
    assert (tmp_path / NAME).exists()
    other.release()
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"host": "a"}'])
def test_files_that_say_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)
    FolderLock(tmp_path).release()


def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", unsupported)
    ended = os.fork()
    if ended == 0:
        os._exit(0)
    os.waitpid(ended, 0)
    here = socket.gethostname()
    for host, pid, is_taken in (
        (here, ended, False),
        (here, os.getppid(), True),
        ("elsewhere", ended, True),
    ):
        (tmp_path / NAME).write_text(json.dumps({"host": host, "pid": pid}))
        if is_taken:
            with pytest.raises(
                LockedError, match=f"process {pid} of host {host} .*remove"
            ):
                FolderLock(tmp_path)
        else:
            FolderLock(tmp_path).release()
