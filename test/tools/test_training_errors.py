"""What cannot be trained is refused in one paragraph that names the op and its scope."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.command_line import failure, succeed

Value = tuple[str, int, list[int]]

X: Value = ("x", TensorProto.FLOAT, [8, 6])
LINEAR = helper.make_node("MatMul", ["x", "w"], ["y"], name="/body/linear/MatMul")


Y: Value = ("y", TensorProto.FLOAT, [8, 4])
Z: Value = ("z", TensorProto.FLOAT, [8, 4])
LOSS: Value = ("z", TensorProto.FLOAT, [])


def save(
    path: Path, node: onnx.NodeProto | None, output: Value, *labels: Value
) -> Path:
    """A linear layer and a node behind it, in a module called `head`."""
    weight = np.random.default_rng(0).standard_normal((6, 4), np.float32)
    nodes = [LINEAR] if node is None else [LINEAR, node]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(*value) for value in (X, *labels)],
        [helper.make_tensor_value_info(*output)],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 23)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    return path


def imported(model: Path, loss: str) -> str:
    output = model.with_suffix(".mlir")
    return failure("import", model, "--training", "--loss", loss, "-o", output)


def test_a_loss_that_is_not_scalar(tmp_path: Path):
    message = imported(save(tmp_path / "m.onnx", None, Y), "none")
    assert "must be a scalar" in message and "tensor<8x4xf32>" in message
    assert "onnx.MatMul %y (in body.linear)" in message


def test_an_op_without_a_gradient_rule(tmp_path: Path):
    node = helper.make_node("Hardmax", ["y"], ["z"], name="/head/Hardmax")
    message = imported(save(tmp_path / "m.onnx", node, Z), "mse")
    assert "onnx.Hardmax %z (in head) has no gradient rule" in message
    assert "import_training_step" in message


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_a_result_without_a_gradient(loss: str, tmp_path: Path):
    node = helper.make_node("ArgMax", ["y"], ["z"], axis=-1, name="/head/ArgMax")
    classes = ("z", TensorProto.INT64, [8, 1])
    message = imported(save(tmp_path / "m.onnx", node, classes), loss)
    assert "does not depend on any parameter" in message
    assert "onnx.ArgMax %z (in head)" in message and "i64" in message


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        (("labels", TensorProto.INT64, [7]), "tensor<7xi64>"),
        (("labels", TensorProto.INT64, [8, 4]), "tensor<8x4xi64>"),
        (("labels", TensorProto.FLOAT, [8]), "unsupported type: tensor(float)"),
    ],
)
def test_labels_that_do_not_fit_the_model_s_loss(
    labels: Value, word: str, tmp_path: Path
):
    node = helper.make_node(
        "SoftmaxCrossEntropyLoss", ["y", "labels"], ["z"], name="/head/Loss"
    )
    message = imported(save(tmp_path / "m.onnx", node, LOSS, labels), "none")
    assert "SoftmaxCrossEntropyLoss" in message and "head" in message
    assert word in message


def test_an_ignored_label_of_another_loss(tmp_path: Path):
    model = save(tmp_path / "m.onnx", None, Y)
    options = ("--training", "--loss", "mse", "--ignore-index", "-100")
    message = failure("import", model, *options, "-o", tmp_path / "m.mlir")
    assert "ignore_index" in message and "mse" in message


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training step of a classifier of 4 classes."""
    folder = tmp_path_factory.mktemp("classifier")
    model = save(folder / "model.onnx", None, Y)
    options = ("--training", "--loss", "cross_entropy")
    succeed("import", model, *options, "-o", folder / "model.mlir")
    return folder / "model.mlir"


@pytest.fixture(scope="module")
def distributed(classifier: Path) -> Path:
    output = classifier.with_name("distributed.mlir")
    command = ("distribute", classifier, "--cluster", "cpu", "-d", "2", "-t", "2")
    succeed(*command, "-o", output)
    return output


@pytest.mark.parametrize(
    ("stage", "flat"),
    [
        (1, "w.exp_avg, w.exp_avg_sq"),
        (2, "w.exp_avg, w.exp_avg_sq"),
        (3, "w, w.exp_avg, w.exp_avg_sq"),
    ],
)
def test_what_an_axis_divides_only_when_flat(
    stage: int, flat: str, classifier: Path, tmp_path: Path
):
    """Not refused: stored flat, which a note says, and the step stays what it was."""
    output = tmp_path / "x.mlir"
    command = ("distribute", classifier, "--cluster", "cpu", "-d", "8")
    done = succeed(*command, "--zero", str(stage), "-o", output)
    note = f"note: zero: {flat}: stored flat, as axis 'd' of size 8"
    assert f"{note} divides none of the dimensions\n" in done.errors
    succeed("check", classifier, output)


WRONG_LABELS: list[tuple[npt.NDArray[Any], tuple[str, ...]]] = [
    (np.zeros(7, np.int64), ("int64[7]", "int64[8]")),
    (np.zeros((8, 1), np.int64), ("int64[8, 1]", "int64[8]")),
    (np.zeros(8, np.float32), ("float32[8]", "int64[8]")),
    (np.full(8, 4), ("holds 4", "4 classes", "0 to 3")),
    (np.arange(8) - 1, ("holds -1", "-100, which is ignored")),
]


@pytest.mark.parametrize("steps", [(), ("--steps", "2")])
@pytest.mark.parametrize(("labels", "words"), WRONG_LABELS)
def test_labels_of_a_run(
    labels: npt.NDArray[Any],
    words: tuple[str, ...],
    steps: tuple[str, ...],
    distributed: Path,
    tmp_path: Path,
):
    np.savez(tmp_path / "in.npz", labels=labels)
    command = ("run", distributed, "--backend", "gloo", *steps)
    message = failure(*command, "--inputs", tmp_path / "in.npz")
    assert all(word in message for word in ("'labels'", *words)), message
    # Which op of the loss says so depends on whether its classes are split.
    assert re.search(r"train\.\w+ \(in loss\)", message), message


def test_one_wrong_label_of_many_steps(distributed: Path, tmp_path: Path):
    labels = np.zeros((3, 8), np.int64)
    labels[2, 5] = 11
    np.savez(tmp_path / "in.npz", labels=labels)
    command = ("run", distributed, "--backend", "gloo", "--steps", "3")
    assert "holds 11" in failure(*command, "--inputs", tmp_path / "in.npz")


def test_labels_of_a_check(classifier: Path, distributed: Path, tmp_path: Path):
    np.savez(tmp_path / "in.npz", labels=np.full(8, 4))
    command = ("check", classifier, distributed, "--inputs", tmp_path / "in.npz")
    assert "train.cross_entropy" in failure(*command)


def test_ignored_labels(tmp_path: Path):
    """They are no classes, and a run may hold them."""
    model, program = save(tmp_path / "m.onnx", None, Y), tmp_path / "m.mlir"
    options = ("--training", "--loss", "cross_entropy")
    succeed("import", model, *options, "-o", program)
    inputs = tmp_path / "in.npz"
    np.savez(inputs, labels=np.array([0, 1, 2, 3, -100, -100, -100, -100]))
    succeed("check", program, program, "--inputs", inputs)
    np.savez(inputs, labels=np.array([0, 1, 2, 3, -1, -100, -100, -100]))
    message = failure("check", program, program, "--inputs", inputs)
    assert "holds -1" in message and "-100, which is ignored" in message


def test_tokens_that_the_embedding_lacks(tmp_path: Path):
    """Also where the vocabulary is split, and each device has a part of it."""
    program, distributed = tmp_path / "gpt.mlir", tmp_path / "distributed.mlir"
    size = ("--layers", "1", "--d-model", "8", "--heads", "2", "--vocab", "16")
    succeed("build", "gpt", *size, "--batch", "2", "--seq", "4", "-o", program)
    command = ("distribute", program, "--cluster", "cpu", "-t", "2")
    succeed(*command, "--shard", "transformer.wte.weight:0=t", "-o", distributed)
    for wrong in (16, -17):
        np.savez(tmp_path / "in.npz", input_ids=np.full((2, 4), wrong))
        command = ("run", distributed, "--backend", "gloo")
        message = failure(*command, "--inputs", tmp_path / "in.npz")
        assert f"holds {wrong}" in message and "onnx.Gather" in message
        assert "transformer.wte" in message and "from -16 to 15" in message
