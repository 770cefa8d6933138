"""
Writes files completely or not at all. A file is written beside its destination and
moved there when it is complete. Generated packages have a copy of this module.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TextIO


@contextmanager
def errors_name(path: Path) -> Generator[None]:
    """
    Returns a context manager that adds `path` to each OSError raised in its block that
    names no file, such as the error of a full disk.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_replaceable(path: Path) -> bool:
    """
    Whether a new file can be moved to `path`. This is False if `path` is a pipe or
    another special file, or if its folder is not writable.
    """
    target = path.resolve()
    is_file = not target.exists() or stat.S_ISREG(target.stat().st_mode)
    return is_file and os.access(target.parent, os.W_OK)


@contextmanager
def replaced(path: str | Path) -> Generator[Path]:
    """
    Returns a context manager that yields a temporary path. The file at this path
    replaces `path` at the end of the block. If the block raises, the old file at `path`
    stays. If `path` cannot be replaced, such as a pipe or a file in a read-only folder,
    `path` itself is yielded. Raises OSError that names `path`.
    """
    path = Path(path)
    target = path.resolve()  # a symbolic link stays a link
    mode = target.stat().st_mode if target.exists() else None
    if not is_replaceable(path):
        with errors_name(path):
            yield path
        return
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(13, os.strerror(13), str(path))
    partial = _beside(target)
    try:
        with errors_name(path):
            yield partial
        if mode is not None:
            partial.chmod(stat.S_IMODE(mode))
        partial.replace(target)
    except OSError as error:
        if error.filename == str(partial):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replaced_file(path: str | Path) -> Generator[TextIO]:
    """
    Returns a context manager that yields a text file open for writing. The file
    replaces `path` at the end of the block. If the block raises, the old file at `path`
    stays. Raises OSError that names `path`.
    """
    with replaced(path) as partial, partial.open("w", encoding="utf-8") as stream:
        yield stream


def write_text(path: str | Path, text: str) -> None:
    """
    Writes `text` to `path`, completely or not at all. Raises OSError that names `path`.
    """
    with replaced_file(path) as stream:
        stream.write(text)


@contextmanager
def replaced_files(folder: str | Path) -> Generator[Path]:
    """
    Returns a context manager that yields a temporary folder. At the end of the block,
    its files are moved to `folder`, which is made if it does not exist. If the block
    raises, all files stay as they were. Files in `folder` with other names always stay.
    Raises OSError if a file cannot be written.
    """
    folder = Path(folder)
    is_new = not folder.exists()
    if is_new:
        folder.parent.mkdir(parents=True, exist_ok=True)
    # Inside an existing folder, because it may be on a disk of its own.
    made = _beside(folder.resolve() if is_new else folder.resolve() / folder.name)
    made.mkdir()
    try:
        with errors_name(folder):
            yield made
        if is_new:
            try:
                made.rename(folder.resolve())
                return
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
        for file in sorted(made.rglob("*")):
            target = folder / file.relative_to(made)
            if file.is_dir():
                target.mkdir(exist_ok=True)
            else:
                file.replace(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _beside(target: Path) -> Path:
    """
    Returns an unused path in the folder of `target`, for the file that will replace
    `target`.
    """
    return target.with_name(f".{target.name[:40]}.{os.getpid()}.{token_hex(4)}")
