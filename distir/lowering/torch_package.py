"""Writes a distributed program as a Python package that needs only PyTorch."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.lowering.program_source import program_source
from distir.program import argument_names, argument_roles, entry_function, result_names

ALWAYS = ("__init__", "main", "runtime", "collectives", "tensors")
"""The helper modules of every package."""


def write_package(
    module: ModuleOp, directory: str | Path, weights: str | Path | None = None
) -> Path:
    """
    Writes the per-rank programs of a distributed (or sequential) module to `directory`
    (made if needed): `program.py`, generated; `main.py`, to be started by `torchrun`;
    helper modules; `manifest.json`, which names the arguments, the results and the
    weights file. Returns the directory. Raises DistIRError for programs that have no
    torch lowering; nothing is written then.
    """
    source = program_source(module)
    entry = entry_function(module)
    manifest = {
        "processes": source.processes,
        "classes": [list(c) for c in source.classes],
        "arguments": [
            {"name": name, "role": role}
            for name, role in zip(
                argument_names(entry), argument_roles(entry), strict=True
            )
        ],
        "results": result_names(entry),
        "weights": None if weights is None else str(Path(weights).resolve()),
    }
    texts = {"program.py": source.text, "manifest.json": json.dumps(manifest, indent=2)}
    template = files("distir.lowering.template")
    for name in (*ALWAYS, *sorted(source.helpers - set(ALWAYS))):
        texts[f"{name}.py"] = (template / f"{name}.py").read_text(encoding="utf-8")
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DistIRError(
            f"cannot write the package to {directory}: {error}"
        ) from error
    return directory
