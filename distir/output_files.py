"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
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


@contextmanager
def replaced_file(path: Path) -> Generator[TextIO]:
    """
    Opens a text file that takes the place of `path` when all of it is written; if that fails,
    what was at `path` stays. What nothing can be put in place of, such as a pipe or a file
    in a folder that is read only, is written to as it is. Raises OSError that names `path`.
    """
    target = path.resolve()  # a link stays one
    mode = target.stat().st_mode if target.exists() else None
    replaceable = mode is None or stat.S_ISREG(mode)
    if not replaceable or not os.access(target.parent, os.W_OK):
        with errors_name(path), path.open("w", encoding="utf-8") as stream:
            yield stream
        return
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(13, os.strerror(13), str(path))
    partial = target.with_name(f".{target.name[:40]}.{os.getpid()}")
    try:
        with errors_name(path), partial.open("w", encoding="utf-8") as stream:
            yield stream
        if mode is not None:
            partial.chmod(stat.S_IMODE(mode))
        partial.replace(target)
    except OSError as error:
        if error.filename == str(partial):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        partial.unlink(missing_ok=True)
