"""
Files that are written as a whole or not at all: beside the place where they go, to which
they are moved when all is written. Generated packages have a copy of this module.
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
    """Makes errors in what writes to a file name it, such as that of a disk that is full."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_replaceable(path: Path) -> bool:
    """
    Whether a file can take the place of the one at `path`, if there is one: a pipe or a file
    in a folder that is read only cannot be replaced.
    """
    target = path.resolve()
    is_file = not target.exists() or stat.S_ISREG(target.stat().st_mode)
    return is_file and os.access(target.parent, os.W_OK)


@contextmanager
def replaced(path: str | Path) -> Generator[Path]:
    """
    Gives the path of a file to write, which takes the place of `path` at the end; if that is
    not reached, the old file at `path` stays. What nothing can be put in place of, such as a
    pipe or a file in a folder that is read only, is to be written to as it is. Raises OSError
    that names `path`.
    """
    path = Path(path)
    target = path.resolve()  # a link stays one
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
    """Opens a text file that takes the place of `path` as with `replaced`."""
    with replaced(path) as partial, partial.open("w", encoding="utf-8") as stream:
        yield stream


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file as with `replaced`. Raises OSError that names `path`."""
    with replaced_file(path) as stream:
        stream.write(text)


@contextmanager
def replaced_files(folder: str | Path) -> Generator[Path]:
    """
    Gives a folder to write files to, which are moved to `folder` (made if needed) at the
    end; if that is not reached, all files stay as they were. Other files of `folder` stay.
    Raises OSError.
    """
    folder = Path(folder)
    is_new = not folder.exists()
    if is_new:
        folder.parent.mkdir(parents=True, exist_ok=True)
    # In the folder itself if there is one, which may be on a disk of its own.
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
    """Returns the path of something that is to take the place of a file or folder."""
    return target.with_name(f".{target.name[:40]}.{os.getpid()}.{token_hex(4)}")
