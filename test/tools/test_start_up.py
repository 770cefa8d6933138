"""The tools start without torch, and report errors in one paragraph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import distir, write_program

from distir.tools.distir_opt import main as distir_opt


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True
    )


def test_torch_is_not_imported():
    """By none of these, one after the other in one process."""
    codes = (
        "from distir.dialects import get_all_dialects; "
        "[load() for load in get_all_dialects().values()]",
        "from distir.passes import get_all_passes; "
        "[load() for load in get_all_passes().values()]",
        "import distir.tools.cli; distir.tools.cli.argument_parser()",
        "import distir.universe",
        "import distir.sharding.rules, distir.hardware, distir.interpreters.simulator",
    )
    lines = ["import sys"]
    for code in codes:
        lines += [code, f"if 'torch' in sys.modules: sys.exit({code!r})"]
    done = python("\n".join(lines))
    assert done.returncode == 0, done.stderr


def test_distir_opt_does_not_import_torch(tmp_path: Path):
    model = write_program(tmp_path / "model.mlir")
    code = (
        "import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); "
        "from distir.tools.distir_opt import main; main()"
    )
    done = python(
        code, str(model), "-p", "distribute{d=2 t=2}", "-o", str(tmp_path / "o")
    )
    assert done.stdout.strip() == "False", done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-p", "no-such-pass"), "no-such-pass"),
        (("-p", "distribute{d=x}"), "takes a whole number"),
        (("-p", "distribute{"), "pass pipeline"),
        (("-p", "distribute{d=3}"), "cannot be split"),
        (("--pass-pipeline=builtin.module(distribute{d=3})",), "cannot be split"),
        (("--pass-pipeline", "builtin.module(no-such-pass)"), "no-such-pass"),
    ],
)
def test_distir_opt_errors(tmp_path: Path, arguments: tuple[str, ...], message: str):
    model = write_program(tmp_path / "model.mlir")
    done = distir(model, *arguments, command=distir_opt)
    assert done.code == 1
    (line,) = done.errors.splitlines()
    assert line.startswith("error: ") and message in line


def test_malformed_file(tmp_path: Path):
    model = write_program(tmp_path / "model.mlir", "func.func @main() {\n  foo.bar }")
    done = subprocess.run(
        [sys.executable, "-m", "distir.tools.distir_opt", str(model)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    where = f"error: {model}:2:11: Operation foo.bar is not registered; "
    assert done.stderr.startswith(where) and done.stderr.count("\n") == 1
