"""
Places of generated programs in the user's module, for errors and for ranges of
PyTorch's profiler. The comments of `program.py` contain them.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import re
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from distir.transforms.repeats.naming import specialise

_SCOPE = re.compile(r"\s*# (?P<scope>[\w.*]+)$")
"""A comment of a generated program: the module of the source that the next lines are of."""
_SOURCE = re.compile(r".*  # (?P<source>\S.*:\d+)$")
"""A line of a generated program with the line of the source that it comes from."""
_DEFINITION = re.compile(r"\s*def ")

OWN_SCOPE = "self"
"""The comment before lines of a class that are of none of its parts."""


@dataclass(frozen=True)
class SourcePlace:
    """
    A place in the user's module.

    - `module`: the path of a part of the module, or "" if unknown;
    - `near`: the part of `module` that the program entered last before this place, or
      "" if there is none or `module` is exact;
    - `source`: the `file:line` of the user's code, or "" if unknown;
    - `line`: the line of `program.py`.
    """

    module: str
    near: str
    source: str
    line: int

    def __str__(self) -> str:
        """Returns `file:line, self.path`, without unknown parts."""
        path = ".".join(filter(None, (self.module, self.near)))
        own = f"self.{path}" if path else ""
        return ", ".join(filter(None, (self.source, own)))


Frames = Iterable[tuple[FrameType, int]]
"""Frames of a call stack, callers first, each with the line that it runs."""


def place_of(frames: Frames, file: str) -> SourcePlace | None:
    """
    Returns the place in the user's module that is running, given the stack frames
    `frames`. The result is None if no frame runs a method of the program `file`.
    """
    own = [(f, line) for f, line in frames if f.f_code.co_filename == file]
    if not own:
        return None
    root = own[0][0].f_locals["self"]
    module = near = source = ""
    for frame, line in own:
        scope, found = _comments(file, line)
        source = found or source
        part = frame.f_locals["self"]
        if part is not root:
            # Comments in its class are relative to it.
            module, near = _path_in(root, part), scope
        elif scope:
            module = specialise(scope, module) if module else scope
    if source:  # comments tell where each part ends
        module, near = ".".join(filter(None, (module, near))), ""
    return SourcePlace(module, near, source, own[-1][1])


def _path_in(root: torch.nn.Module, part: torch.nn.Module) -> str:
    return next((name for name, each in root.named_modules() if each is part), "")


@functools.lru_cache(4096)
def _comments(file: str, line: int) -> tuple[str, str]:
    """
    Returns the scope and the source line that the comments of a program give for a
    line, each "" if unknown.
    """
    scope = None
    source = ""
    while line > 0 and (scope is None or not source):
        text = linecache.getline(file, line)
        if _DEFINITION.match(text):
            break
        if (own := _SOURCE.match(text)) is not None:
            source = source or own["source"]
        elif scope is None and (found := _SCOPE.match(text)) is not None:
            scope = "" if found["scope"] == OWN_SCOPE else found["scope"]
        line -= 1
    return scope or "", source


def running_frames(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    """Returns a frame and all its callers, callers first."""
    found: list[tuple[FrameType, int]] = []
    while frame is not None:
        found.append((frame, frame.f_lineno))
        frame = frame.f_back
    return found[::-1]


@contextlib.contextmanager
def named_places(program: Path) -> Generator[None]:
    """
    A context manager in which the program in the file `program` runs. An error inside
    it gets a note with the line of the user's module and the path of the part. While
    PyTorch's profiler is on, the ops of each part are in a range (`record_function`)
    with the part's path.
    """
    with contextlib.ExitStack() as stack:
        # Set by all of PyTorch's profilers; a call per step costs nothing else.
        if torch.autograd.profiler._is_profiler_enabled:  # pyright: ignore[reportPrivateUsage]
            ranges = _Ranges(str(program))
            stack.callback(ranges.close)
            stack.enter_context(ranges)
        try:
            yield
        except Exception as error:
            place = place_of(_frames_of(error), str(program))
            if place is not None and str(place):
                error.add_note(f"in {place} (line {place.line} of {program})")
            raise


def _frames_of(error: Exception) -> list[tuple[FrameType, int]]:
    trace = error.__traceback__
    found: list[tuple[FrameType, int]] = []
    while trace is not None:
        found.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return found


class _Ranges(TorchFunctionMode):
    """
    Puts each PyTorch function that a program calls into the profiler's range of its
    part.
    """

    def __init__(self, file: str):
        super().__init__()
        self._file = file
        self._open: tuple[str, Any] | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        frames = running_frames(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        place = place_of(frames, self._file)
        if place is not None:
            self._enter(place.module or "self")
        return func(*args, **(kwargs or {}))

    def _enter(self, name: str) -> None:
        if self._open is not None and self._open[0] == name:
            return
        self.close()
        range_ = torch.profiler.record_function(name)
        range_.__enter__()
        self._open = name, range_

    def close(self) -> None:
        """Ends the open range, if there is one."""
        if self._open is not None:
            self._open[1].__exit__(None, None, None)
        self._open = None
