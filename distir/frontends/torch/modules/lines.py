"""The lines of users' files in which something happens while a module runs."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from types import FrameType

import torch

_NOT_USERS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (torch.__file__, os.path.join(__file__, *[".."] * 3), os.__file__)
)
"""The folders of PyTorch, DistIR and Python's own modules; packages lie in one of these."""
_PACKAGES = ("site-packages", "dist-packages")


def calling_line() -> str:
    """
    Returns the innermost line of a user's code that runs at the moment in what DistIR calls
    (see `line_of`); if there is none, the innermost of PyTorch's.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    innermost = frame
    while frame is not None and not _is_ours(frame.f_code.co_filename):
        if is_users(frame.f_code.co_filename):
            return line_of(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    if innermost is None:
        return ""
    return line_of(innermost.f_code.co_filename, innermost.f_lineno)


def _is_ours(path: str) -> bool:
    return os.path.abspath(path).startswith(_NOT_USERS[1])


def failing_line(error: BaseException) -> str:
    """
    Returns the innermost line of a user's code that ran when an error was raised (see
    `line_of`), or "" if there is none.
    """
    found = ""
    while True:
        for frame, number in traceback.walk_tb(error.__traceback__):
            if is_users(frame.f_code.co_filename):
                found = line_of(frame.f_code.co_filename, number)
        if error.__cause__ is None:
            return found
        error = error.__cause__


def is_users(path: str) -> bool:
    """Whether a file is neither Python's nor PyTorch's nor DistIR's."""
    if path.startswith("<"):
        return False
    path = os.path.abspath(path)
    torchs, ours, pythons = _NOT_USERS
    if path.startswith((torchs, ours)):
        return False
    inside = path.startswith(pythons)
    return not inside or any(f"{os.sep}{p}{os.sep}" in path for p in _PACKAGES)


def line_of(path: str, number: int) -> str:
    """Returns a line as errors give it: `FILE:NUMBER (`text`)`."""
    text = linecache.getline(path, number).strip()
    return f"{path}:{number}" + (f" (`{text}`)" if text else "")
