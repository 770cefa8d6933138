"""Makes the golden record, and compares it with the one that is committed."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import distir
from distir.facade.model_program import ModelProgram
from distir.lowering.helper_modules import helper_modules
from golden.models import MODELS
from golden.plans import Options, planned
from golden.searches import COMMANDS, PASSES, run_pass, search

RECORD = Path(__file__).parent / "record.json"

Row = dict[str, str | float]

_NOT_IN_PACKAGES = (".safetensors",)
"""Weights are not recorded: those of imported models are PyTorch's."""


@dataclass(frozen=True)
class Case:
    """A row of the record, before it is made: its name, and its model."""

    name: str
    model: str


def all_cases() -> list[Case]:
    """Returns every case: of plans, of searches by command, and of passes that search."""
    named = [(name, model) for name, (model, _, _) in planned().items()]
    named += [(name, model) for name, (model, _) in (COMMANDS | PASSES).items()]
    return [Case(*each) for each in named]


def made(
    cases: Sequence[Case], jobs: int, texts: Path | None = None
) -> Iterator[tuple[str, Row]]:
    """
    Yields the rows of cases as they are made, by `jobs` processes, each of which makes a
    model once for all of its cases. `texts` is a folder for what the digests are of.
    """
    by_model = {
        model: [c.name for c in cases if c.model == model]
        for model in MODELS
        if any(c.model == model for c in cases)
    }
    # Large ones first, so that no process has one left at the end.
    order = sorted(by_model.items(), key=lambda item: -len(item[1]))
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        for rows in pool.imap_unordered(partial(_rows, texts=texts), order):
            yield from rows


def _rows(task: tuple[str, list[str]], texts: Path | None) -> list[tuple[str, Row]]:
    model, names = task
    program = MODELS[model]()
    found: list[tuple[str, Row]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mlir"
        ModelProgram(program.module).save(path)
        for name in names:
            with tempfile.TemporaryDirectory() as own:
                parts, row = _made(name, program, path, Path(own))
            for part, text in parts.items():
                row[part] = _digest(text)
                if texts is not None:
                    _write(texts, f"{name} | {part}", text)
            found.append((name, row))
    return found


def _made(
    name: str, program: ModelProgram, path: Path, folder: Path
) -> tuple[dict[str, str], Row]:
    """Returns the texts of a case, and its numbers."""
    if name in COMMANDS:
        return search(path, COMMANDS[name][1], folder), {}
    if name in PASSES:
        return run_pass(path, PASSES[name][1], folder), {}
    _, cluster, options = planned()[name]
    try:
        return _planned(program, cluster, options, folder)
    except distir.DistIRError as error:
        return {"error": str(error)}, {}


def _planned(
    program: ModelProgram, cluster: str, options: Options, folder: Path
) -> tuple[dict[str, str], Row]:
    given = dict(options)
    degrees = "d", "t", "p", "r", "c", "e"
    devices = 1
    for degree in degrees:
        devices *= given.get(degree, 1)
    if devices > 8:
        given["devices"] = 16
    distributed = distir.distribute(program, cluster=cluster, **given)
    simulated = distir.simulate(distributed)
    texts = {"program": str(distributed)}
    distir.lower(distributed, folder / "package")
    # Copies of distir.runtime, in which a comment may change.
    copied = helper_modules() | {"__init__"}
    texts["package"] = "".join(
        f"==> {file.relative_to(folder)} <==\n{file.read_text('utf-8')}"
        for file in sorted((folder / "package").rglob("*"))
        if file.is_file() and file.suffix not in _NOT_IN_PACKAGES
        if file.stem not in copied
    )
    numbers: Row = {
        "seconds": float(f"{simulated.step_time_s:.12g}"),
        "bytes": simulated.memory_bytes,
    }
    return texts, numbers


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(folder: Path, name: str, text: str) -> None:
    safe = "".join(c if c.isalnum() or c in "=-." else "_" for c in name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{safe}.txt").write_text(text, "utf-8")


def recorded() -> dict[str, Row]:
    """Returns the rows that are committed."""
    return json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}


def write(rows: Mapping[str, Row]) -> None:
    """Writes rows as the record, one on each line."""
    lines = (f"{json.dumps(n)}: {json.dumps(rows[n])}" for n in sorted(rows))
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns a line for each part of each row that differs, and each row that is new or gone."""
    lines: list[str] = []
    for name in sorted({*before, *after}):
        if name not in after or name not in before:
            lines.append(f"{name}: {'gone' if name in before else 'new'}")
            continue
        old, new = before[name], after[name]
        lines += [
            f"{name}: {part}: {old.get(part)} became {new.get(part)}"
            for part in sorted({*old, *new})
            if old.get(part) != new.get(part)
        ]
    return lines
