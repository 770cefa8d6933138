"""Errors and profiles of programs, which name lines of the user's module: run on ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile

import distir
from support.parallel_scripts import Options
from support.parallel_source import made


def named_lines(options: Options) -> dict[str, Any]:
    """
    Returns the source comments of a program, the notes of an error in an embedding in
    training and in evaluation, and the ranges of a profile.
    """
    ids = torch.arange(32).reshape(4, 8)
    model = distir.parallelize(made(), (ids,), loss="cross_entropy", **options).train()
    own = ids.chunk(model.data_ranks)[model.data_rank]
    model(own, own).backward()
    folder: Path = model._program.folder  # pyright: ignore[reportPrivateUsage]
    text = (folder / "program.py").read_text()
    notes: list[list[str]] = []
    for is_training in (True, False):
        model.train(is_training)
        try:
            model(own + 100, own) if is_training else model(own + 100)
        except IndexError as error:
            notes.append(error.__notes__)
    model.train()
    with profile() as profiled:
        model(own, own).backward()
    return {
        "comments": sorted(
            {li.rpartition("  # ")[2] for li in text.splitlines() if ".py:" in li}
        ),
        "notes": notes,
        "ranges": sorted(
            {e.name for e in profiled.events() or () if e.name.startswith("layers.")}
        ),
    }
