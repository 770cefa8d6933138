"""Every module can be imported first: none depends on another having been there before."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.thoroughness import IS_THOROUGH

import distir

SCRIPT = """
import importlib, os, sys, traceback
import numpy, onnx, onnx.reference, xdsl.parser, xdsl.interpreter, xdsl.dialects.func
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except BaseException:
            print(name, traceback.format_exc(limit=-3), flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Imports each module in a process that has nothing of distir."""


def modules() -> list[str]:
    """Those of the package, without what is copied into generated packages."""
    found = pkgutil.walk_packages(distir.__path__, "distir.")
    return [module.name for module in found if ".template." not in module.name]


def assert_each_can_be_imported_first(names: Sequence[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(distir.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout, done.stdout


def test_every_pass_can_be_imported_first() -> None:
    """
    Tools import passes by name, when they are asked for. In `make test` every eighth one is:
    cycles, which would be the cause, are looked for in all modules (`test_house_rules`).
    """
    passes = [name for name in modules() if name.startswith("distir.passes.")]
    assert len(passes) > 20
    assert_each_can_be_imported_first(passes if IS_THOROUGH else passes[::8])


@pytest.mark.slow
def test_every_module_can_be_imported_first() -> None:
    names = modules()
    assert len(names) > 300
    assert_each_can_be_imported_first(names)
