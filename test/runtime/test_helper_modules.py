"""A generated package holds every module that its modules import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.command_line import succeed, write_program

from distir.lowering.helper_modules import helper_modules, helper_text, with_imports

QUANTIZED = """
func.func @main(%x: tensor<4xf32> {dist.role = "input", dist.name = "x"}) -> tensor<4xf32> {
  %s = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %z = onnx.Constant() {value = dense<3> : tensor<ui8>} : () -> tensor<ui8>
  %q = onnx.QuantizeLinear(%x, %s, %z) : (tensor<4xf32>, tensor<f32>, tensor<ui8>) -> tensor<4xui8>
  %y = onnx.DequantizeLinear(%q, %s, %z) : (tensor<4xui8>, tensor<f32>, tensor<ui8>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
"""

_IMPORT_ALL = """
import importlib, os, sys
for package in sys.argv[1:]:
    importlib.import_module(f"{package}.{package.removeprefix('only_')}")
"""


def _import(folder: Path, program: str, *arguments: str) -> None:
    """Runs Python in a folder that knows nothing of this project."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_every_module_alone_comes_with_all_that_it_imports(tmp_path: Path) -> None:
    """As does a package of a quantized program."""
    model = write_program(tmp_path / "model.mlir", QUANTIZED)
    dist = tmp_path / "dist.mlir"
    succeed("distribute", model, "--cluster", "cpu", "-d", "2", "-o", dist)
    succeed("lower", dist, "-o", tmp_path / "program")
    packages: list[str] = []
    for root in sorted(helper_modules() - {"main"}):
        package = tmp_path / f"only_{root}"
        package.mkdir()
        (package / "__init__.py").touch()
        for name in with_imports([root]):
            (package / f"{name}.py").write_text(helper_text(name))
        packages.append(package.name)
    assert len(packages) > 20
    _import(tmp_path, _IMPORT_ALL, "program", *packages)
