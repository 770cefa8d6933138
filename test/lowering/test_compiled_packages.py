"""Packages whose methods go through `torch.compile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import succeed
from support.training_programs import distributed, training_gpt
from torch._inductor import cpp_builder, exc

from distir.interpreters.inputs import random_arguments
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.program import argument_names, entry_function
from distir.runtime.runtime import ProgramError, check_compiler

DECORATOR = "    @torch.compile(dynamic=False)\n    def "


def test_what_is_compiled(tmp_path: Path) -> None:
    """
    The methods of a layer, once for all layers, and the ops between the calls of layers, such
    as the head with its loss, but not the method that calls them all.
    """
    program = tmp_path / "program.mlir"
    succeed("build", "gpt", "--layers", "4", "--d-model", "16", "--heads", "4", "--vocab",
            "32", "--batch", "4", "--seq", "8", "--training", "-o", program)  # fmt: skip
    succeed("lower", program, "-o", tmp_path / "package", "--compile")
    text = (tmp_path / "package" / "program.py").read_text()
    layer, program_class = text.split("class Program0")
    assert layer.count(DECORATOR) == layer.count("    def ") - 1 == 2  # but __init__
    between = program_class.count("    def between")
    assert program_class.count(DECORATOR) == between == 1
    assert f"{DECORATOR}forward" not in program_class
    assert json.loads((tmp_path / "package" / "manifest.json").read_text())["compiled"]
    succeed("lower", program, "-o", tmp_path / "package")
    assert DECORATOR not in (tmp_path / "package" / "program.py").read_text()


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(
        ProgramError, match=r"needs a C\+\+ compiler .* leave out --compile"
    ):
        check_compiler("gloo")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"d": 2, "zero": 1, "overlap": True},
        {"d": 2, "zero": 3, "overlap": True},
        {"t": 2, "sequence_parallel": True},
        {"p": 2, "k": 2},
    ],
    ids=str,
)
def test_results(options: dict[str, Any], tmp_path: Path, spawner: Spawner) -> None:
    """A compiled package gives what the eager one does, however it is distributed."""
    step = training_gpt(optimizer="sgd", learning_rate=1.0, momentum=0.5)
    module = distributed(step, **options)
    names = argument_names(entry_function(step))
    values = map(np.asarray, random_arguments(step, 5))
    inputs = dict(zip(names, values, strict=True))
    eager, compiled = (
        run_package(
            write_package(module, tmp_path / str(how), compiled=how),
            inputs=inputs,
            spawner=spawner,
        )
        for how in (False, True)
    )
    assert eager.keys() == compiled.keys()
    for name, value in eager.items():
        np.testing.assert_allclose(compiled[name], value, rtol=1e-4, atol=1e-5)
