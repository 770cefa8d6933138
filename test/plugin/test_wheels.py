"""
Both packages run from installed wheels, outside of the checkout and in an environment of
their own, in which there is nothing but DistIR and its dependencies, not even PyTorch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from plugin.test_plugin import PLUGINS, PRODUCTS, PROGRAM, SPLITS

ROOT = PLUGINS.parents[1]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment in which the wheels are installed."""
    folder = tmp_path_factory.mktemp("wheels")
    # Building leaves files beside the sources, so it works on copies.
    ignored = shutil.ignore_patterns("*.egg-info", "build", "__pycache__", "runs")
    distir = folder / "distir"
    shutil.copytree(ROOT / "distir", distir / "distir", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, distir / name)
    sources = [distir]
    for package in ("toy", "tosa_support"):
        sources.append(folder / package)
        shutil.copytree(PLUGINS / package, sources[-1], ignore=ignored)
    wheels = folder / "dist"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    succeed(folder, *pip, "wheel", "--no-deps", "-w", wheels, *sources)
    succeed(folder, sys.executable, "-m", "venv", folder / "env")
    place = folder / "env" / "bin"
    found = sorted(wheels.glob("*.whl"))
    assert len(found) == 3
    succeed(folder, place / "python", *pip[1:], "install", *found)
    for source in sources:
        shutil.rmtree(source)
    return place


def succeed(folder: Path, *command: str | Path) -> str:
    """The output of a command that runs in a folder, without paths of the checkout."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    done = subprocess.run(
        command,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_op_is_checked_without_pytorch(tools: Path, tmp_path: Path) -> None:
    script = shutil.copy(PLUGINS / "check_ops.py", tmp_path)
    *checked, wrong = succeed(tmp_path, tools / "python", script).splitlines()
    assert len(checked) == 11 and "differs from the reference" in wrong
    assert all(" agree with the reference" in line for line in checked)
    assert not any("PyTorch" in line for line in checked)
    where = succeed(tmp_path, tools / "python", "-c", "import distir; print(distir)")
    assert str(tools.parent) in where


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "options"),
    [(PROGRAM, ("-d", "2", "-t", "2", *SPLITS)), (PRODUCTS, ("-t", "4"))],
    ids=["toy", "tosa"],
)
def test_programs_are_distributed(
    program: str, options: tuple[str, ...], tools: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.mlir").write_text(program)
    distir = tools / "distir"
    succeed(
        tmp_path,
        distir,
        "distribute",
        "model.mlir",
        "--cluster",
        "cpu",
        *options,
        "-o",
        "dist.mlir",
    )
    succeed(tmp_path, distir, "check", "model.mlir", "dist.mlir")
    succeed(tmp_path, distir, "simulate", "dist.mlir", "--json", "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["step_time_s"] > 0
    assert "all_reduce" in (tmp_path / "dist.mlir").read_text()
