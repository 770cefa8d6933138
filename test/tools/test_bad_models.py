"""ONNX files that cannot be imported are one paragraph and a non-zero exit code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support.command_line import failure


def model_of(*nodes: onnx.NodeProto, **domains: int) -> ModelProto:
    """A model from `x` to `y` with a weight `w`, 4 x 4 each."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])],
        [numpy_helper.from_array(np.ones((4, 4), np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 20)]
    opsets += [helper.make_opsetid(name, version) for name, version in domains.items()]
    return helper.make_model(graph, opset_imports=opsets)


def with_external_data(model: ModelProto, location: str) -> ModelProto:
    """The model with its weight in another file."""
    (weight,) = model.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": "0", "length": "64"}
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    return model


def import_fails(model: ModelProto, folder: Path) -> str:
    """The message for a model; nothing is written."""
    path, output = folder / "model.onnx", folder / "model.mlir"
    path.write_bytes(model.SerializeToString())
    message = failure("import", path, "-o", output)
    assert not output.exists() and not output.with_suffix(".safetensors").exists()
    return message


MATMUL = helper.make_node("MatMul", ["x", "w"], ["y"])


def test_operator_outside_the_standard(tmp_path: Path):
    node = helper.make_node("FancyAttention", ["x", "w"], ["y"], domain="com.example")
    message = import_fails(model_of(node, **{"com.example": 1}), tmp_path)
    assert "FancyAttention" in message and "com.example" in message


def test_unknown_operator(tmp_path: Path):
    node = helper.make_node("MatMull", ["x", "w"], ["y"])
    assert "MatMull" in import_fails(model_of(node), tmp_path)


def test_operator_with_a_body(tmp_path: Path):
    y = helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 4])
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "b", [], [y])
    condition = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    message = import_fails(model_of(*condition, node), tmp_path)
    assert "If 'y'" in message and "depends on the values of 'x'" in message


@pytest.mark.parametrize(
    "location", ["../weights.bin", "/etc/hostname", "folder/../../weights.bin"]
)
def test_external_data_outside_the_folder(tmp_path: Path, location: str):
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    message = import_fails(with_external_data(model_of(MATMUL), location), folder)
    assert "'w'" in message


def test_external_data_through_a_link(tmp_path: Path):
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").symlink_to(tmp_path / "weights.bin")
    import_fails(with_external_data(model_of(MATMUL), "weights.bin"), folder)


def test_external_data_is_missing(tmp_path: Path):
    message = import_fails(
        with_external_data(model_of(MATMUL), "weights.bin"), tmp_path
    )
    assert "weights.bin" in message


def test_external_data_is_too_short(tmp_path: Path):
    (tmp_path / "weights.bin").write_bytes(bytes(10))
    message = import_fails(
        with_external_data(model_of(MATMUL), "weights.bin"), tmp_path
    )
    assert "weights.bin" in message


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"not a model"])
def test_not_a_model(tmp_path: Path, content: bytes):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert "model.onnx" in failure("import", path, "-o", tmp_path / "model.mlir")


def test_missing_model(tmp_path: Path):
    path = tmp_path / "missing.onnx"
    assert "missing.onnx" in failure("import", path, "-o", tmp_path / "model.mlir")


def test_folder_as_model(tmp_path: Path):
    failure("import", tmp_path, "-o", tmp_path / "model.mlir")
