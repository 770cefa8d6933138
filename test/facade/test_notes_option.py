"""A distributed program has no remarks if none are wanted: command, pass and Python alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.command_line import distir as run_command
from support.command_line import succeed

import distir
from distir.tools.distir_opt import main as distir_opt


def test_notes_are_left_out(tmp_path: Path) -> None:
    path, dist = tmp_path / "m.mlir", tmp_path / "d.mlir"
    program = distir.build("mlp", layers=1, d_model=6, batch=8)
    program.save(path)
    options: dict[str, Any] = dict(cluster="cpu", d=2, t=4)
    told = distir.distribute(program, **options)
    assert told.notes
    assert not distir.distribute(program, **options, notes=False).notes
    succeed(
        *("distribute", path, "--cluster", "cpu", "-d", "2", "-t", "4", "--no-notes"),
        *("-o", dist),
    )
    assert "dist.notes" not in dist.read_text()
    done = run_command(
        path, "-p", "distribute{cluster=cpu d=2 t=4 notes=false}", command=distir_opt
    )
    assert done.code == 0 and "dist.notes" not in done.output
