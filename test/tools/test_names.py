"""Names are text of any kind, and find the weights that are meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.command_line import failure, succeed

from distir.program.weights import load_weights, save_weights
from distir.tools.files import read_arrays

NAME = "dénse/重み:0"
KERNEL = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An imported model with a parameter whose name is not ASCII."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["entrée", NAME], ["größe"])],
        "g",
        [helper.make_tensor_value_info("entrée", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info("größe", TensorProto.FLOAT, [4, 4])],
        [numpy_helper.from_array(KERNEL, NAME)],
    )
    opsets = [helper.make_opsetid("", 18)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    program = path.with_suffix(".mlir")
    succeed("import", path, "-o", program)
    return program


@pytest.mark.usefixtures("shared_ranks")
def test_weights_with_names_outside_of_ascii_are_found(model: Path):
    dist, outputs = model.with_name("dist.mlir"), model.with_name("outputs.npz")
    succeed("distribute", model, "--cluster", "cpu", "-t", "2", "-o", dist)
    assert 'dist.name = "d\\C3\\A9nse' in dist.read_text()
    inputs = model.with_name("inputs.npz")
    np.savez(inputs, entrée=np.eye(4, dtype=np.float32))
    succeed("check", model, dist, "--inputs", inputs)
    options = ("--inputs", inputs, "--outputs", outputs)
    succeed("run", dist, "--backend", "gloo", *options)
    np.testing.assert_array_equal(read_arrays(outputs)["größe"], KERNEL)


@pytest.mark.parametrize("command", ["check", "run", "lower"])
def test_weights_that_no_argument_has_are_an_error(model: Path, command: str):
    weights = dict(load_weights(model.with_suffix(".safetensors")))
    save_weights(model.with_suffix(".safetensors"), weights | {"other": KERNEL})
    options = {
        "check": (model, model),
        "run": (model, "--backend", "gloo"),
        "lower": (model, "-o", model.with_name("package")),
    }
    message = failure(command, *options[command])
    assert "holds 'other', but" in message and "no argument of that name" in message


def test_weights_of_an_argument_by_another_name_are_an_error(model: Path):
    model.write_text(model.read_text().replace("nse/", "nse."))
    assert "no argument of that name" in failure("check", model, model)
