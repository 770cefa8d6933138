"""
Training steps of JAX, as files: imported, distributed, checked, and run by PyTorch on
several processes, with the results that JAX had (`test/jax/export.py`).
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import succeed
from support.jax_files import FOLDER, sample, step_arguments
from support.thoroughness import chosen
from xdsl.dialects.builtin import TensorType

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import shape_of
from distir.program import argument_names, entry_function, result_names
from distir.tools.files import read_program, write_arrays

CASES = [
    ("mlp", ["-d", "2", "-t", "2"]),
    ("mlp", ["-d", "4", "--zero", "3"]),
    ("gpt_scan", ["-d", "2", "-t", "2", "--zero", "1"]),
    ("gpt_scan", ["-d", "4", "--zero", "3"]),
    ("vit", ["-d", "2", "-t", "2"]),
    ("vit", ["-d", "4", "--zero", "3"]),
    ("resnet", ["-d", "2", "-t", "2", "--zero", "1"]),
    ("resnet", ["-d", "4", "--zero", "3"]),
    ("moe", ["-d", "2", "-t", "2"]),
    ("moe", ["-d", "4", "--zero", "3"]),
    ("dropout", ["-d", "2", "-t", "2"]),
]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("name, options", chosen(CASES, CASES[:1]))
def test_pytorch_gives_what_jax_gave(
    name: str, options: list[str], tmp_path: Path
) -> None:
    text, model, dist = (tmp_path / f"{n}.mlir" for n in ("step", "model", "dist"))
    given, found = tmp_path / "given.npz", tmp_path / "found.npz"
    text.write_bytes(gzip.decompress((FOLDER / f"{name}.mlir.gz").read_bytes()))
    succeed("import", text, "-o", model)
    function = entry_function(read_program(model))
    kinds: dict[str, tuple[tuple[int, ...], Any]] = {}
    types = function.function_type.inputs
    for own, type_ in zip(argument_names(function), types, strict=True):
        assert isinstance(type_, TensorType)
        kinds[own] = shape_of(type_), numpy_dtype(type_.element_type)
    write_arrays(given, step_arguments(kinds))
    succeed("distribute", model, "-o", dist, "--cluster", "cpu", *options)
    checked = ["--inputs", given, "--tolerance", "1e-5"]
    assert "equal" in succeed("check", model, dist, *checked).output
    succeed("run", dist, "--backend", "gloo", "--inputs", given, "--outputs", found)
    wanted = np.load(FOLDER / f"{name}.npy")
    with np.load(found) as results:
        for own, row in zip(result_names(function), wanted, strict=True):
            np.testing.assert_allclose(
                sample(results[own]), row, rtol=1e-5, atol=1e-5, err_msg=own
            )
