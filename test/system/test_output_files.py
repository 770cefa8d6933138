"""Files that are replaced only when all of the new content is written."""

import os
from pathlib import Path

import pytest

from distir.system.output_files import replaced_file


def test_what_was_there_stays_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.mlir"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replaced_file(path) as stream:
        stream.write("ne")
        stream.flush()
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "a.mlir", tmp_path / "b.mlir"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with replaced_file(link) as stream:
        stream.write("new")
    assert link.is_symlink() and path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_pipes_are_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with replaced_file(path) as stream:
            stream.write("new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", ["none/a.mlir", "."])
def test_errors_name_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(OSError) as found, replaced_file(path):
        pass
    assert found.value.filename == str(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_disk_that_is_full_is_named() -> None:
    path = Path("/dev/full")
    with (
        pytest.raises(OSError, match="No space left") as found,
        replaced_file(path) as f,
    ):
        f.write("new")
    assert found.value.filename == str(path)
