"""Finds the line of a module in the stack traces that PyTorch's exporter records."""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path

import torch

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TORCH = str(Path(torch.__file__).parent) + os.sep


@functools.lru_cache(4096)  # nodes of one operation share their trace
def module_line(trace: str) -> str:
    """
    Returns `file:line` of the innermost call in a stack trace that is not in PyTorch's
    own code, or "" if there is no such call. The file is relative to the folder from
    which Python imports it, so that the text is the same on all machines:
    `model.py:12`, `transformers/models/gpt2/modeling_gpt2.py:264`.
    """
    found = [m for m in _FRAME.finditer(trace) if not m["file"].startswith(_TORCH)]
    if not found:
        return ""
    return f"{_importable(found[-1]['file'])}:{found[-1]['line']}"


@functools.cache
def _importable(file: str) -> str:
    """
    Returns a file's path relative to the innermost folder of `sys.path` that contains
    the file.
    """
    folders = [os.path.join(os.path.abspath(folder), "") for folder in sys.path]
    known = [folder for folder in folders if file.startswith(folder)]
    return Path(file[len(max(known, key=len, default="")) :]).as_posix()
