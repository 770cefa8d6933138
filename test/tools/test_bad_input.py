"""Bad input is one paragraph and a non-zero exit code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.command_line import TWO_LAYERS, failure, succeed, write_program


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_program(tmp_path / "model.mlir")


def distribute(model: Path, *options: str) -> tuple[str | Path, ...]:
    output = model.with_name("dist.mlir")
    return ("distribute", model, "--cluster", "dgx2", *options, "-o", output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "COMMAND"),
        (("frobnicate",), "frobnicate"),
        (("distribute", "m.mlir", "--cluster", "cpu"), "-o"),
        (distribute(Path("m.mlir"), "-d", "0"), "'0' is not a positive whole number"),
        (distribute(Path("m.mlir"), "-t", "two"), "'two'"),
        (("build", "gpt", "-o", "m.mlir"), "--batch"),
        (("import", "m.onnx", "--dim", "batch", "-o", "m.mlir"), "NAME=SIZE"),
        (("import", "m.onnx", "--dim", "batch=-1", "-o", "m.mlir"), "'-1'"),
        (("run", "d.mlir", "--backend", "mpi"), "mpi"),
        (("check", "m.mlir", "d.mlir", "--tolerance", "nan"), "nan"),
    ],
)
def test_usage(arguments: tuple[str, ...], message: str):
    assert message in failure(*arguments, code=2)


def test_missing_file(tmp_path: Path):
    missing = tmp_path / "missing.mlir"
    assert f"{missing}: No such file" in failure(*distribute(missing))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @main() { foo.bar }", ":1:"),
        ("func.func @main(", ":1:17"),
        (TWO_LAYERS.replace("%x, %w1", "%x, %w9"), "%w9"),
        (TWO_LAYERS.replace("onnx.Relu", "onnx.If"), "onnx.If is not registered"),
        (TWO_LAYERS.replace("onnx.Relu(%h)", "onnx.Relu(%h, %h)"), ":8:"),
        (TWO_LAYERS.replace("tensor<8x32xf32>\n", "tensor<8x!!\n", 1), ":7:"),
        ("\0\0\0", ":1:1"),
    ],
)
def test_malformed_program(tmp_path: Path, text: str, message: str):
    model = write_program(tmp_path / "model.mlir", text)
    assert message in failure(*distribute(model, "-d", "2"))


def test_binary_file_as_program(tmp_path: Path):
    model = tmp_path / "model.mlir"
    model.write_bytes(bytes(range(256)))
    assert "not UTF-8" in failure(*distribute(model))


def test_verifier_names_the_op(tmp_path: Path):
    text = TWO_LAYERS.replace(
        "onnx.Relu(%h) : (tensor<8x32xf32>)",
        "onnx.Relu(%h, %h) : (tensor<8x32xf32>, tensor<8x32xf32>)",
    )
    model = write_program(tmp_path / "model.mlir", text)
    message = failure(*distribute(model))
    assert "onnx.Relu takes 1 inputs, got 2" in message
    assert '"onnx.Relu"(%h, %h)' in message


def test_unknown_cluster(model: Path):
    command = ("distribute", model, "--cluster", "dgx9", "-o", model)
    message = failure(*command)
    assert "dgx9" in message and "dgx-h100" in message


def test_cluster_file_without_cluster(model: Path):
    message = failure("distribute", model, "--cluster", model, "-o", model)
    assert "device.cluster" in message


def test_mesh_larger_than_the_cluster(model: Path):
    message = failure(*distribute(model, "-d", "8", "-t", "4"))
    assert "needs 32 devices" in message and "@dgx2 has 16" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--devices", "4000000000"), "cannot have 4000000000 devices"),
        (("-k", "1000000000"), "k=1000000000 x d=1 x t=1 are 1000000000 parts"),
    ],
)
def test_numbers_that_would_fill_memory(
    model: Path, options: tuple[str, ...], message: str
):
    assert message in failure(*distribute(model, *options))


def test_search_on_more_devices_than_there_may_be(model: Path):
    command = ("search", model, "--cluster", "dgx2", "--world-size", "4000000000")
    message = failure(*command, "-o", model.with_name("best.mlir"))
    assert "4000000000 devices are more than a cluster may have" in message


def test_cluster_grows_by_whole_nodes(model: Path):
    message = failure(*distribute(model, "--devices", "17"))
    assert "whole nodes of 16" in message


def test_batch_that_cannot_be_split(tmp_path: Path):
    text = TWO_LAYERS.replace("8x", "3x")
    model = write_program(tmp_path / "model.mlir", text)
    message = failure(*distribute(model, "-d", "2"))
    assert "'x'" in message and "3" in message


def test_distributed_twice(model: Path):
    succeed(*distribute(model, "-d", "2"))
    message = failure(*distribute(model.with_name("dist.mlir"), "-d", "2"))
    assert "distributed already" in message


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("l0.weight:1=z", "no axis 'z'"),
        ("l0.weight:2=t", "no dimension 2"),
        ("l9.weight:0=t", "no argument is called 'l9.weight'"),
        ("l0.weight=t", "NAME:DIM=AXIS"),
        ("l0.weight:1=t:5", "runs of 5"),
    ],
)
def test_shard_request_that_cannot_be_met(model: Path, request_: str, message: str):
    options = ("-d", "2", "-t", "2", "--shard", request_)
    assert message in failure(*distribute(model, *options))


def test_explicit_split_of_an_odd_dimension_pads_it(tmp_path: Path):
    text = TWO_LAYERS.replace("16x32", "16x31").replace("32x16", "31x16")
    text = text.replace("8x32", "8x31")
    model = write_program(tmp_path / "model.mlir", text)
    done = succeed(*distribute(model, "-t", "2", "--shard", "l0.weight:1=t"))
    assert "l0.weight: 31 is padded with zeros to 32" in done.errors
    succeed("check", model, model.with_name("dist.mlir"))


def test_automatic_choice_leaves_an_odd_dimension_whole(tmp_path: Path):
    text = TWO_LAYERS.replace("16x32", "16x31").replace("32x16", "31x16")
    text = text.replace("8x32", "8x31")
    model = write_program(tmp_path / "model.mlir", text)
    done = succeed(*distribute(model, "-t", "2"))
    assert "31 cannot be split evenly by 2" in done.errors
    succeed("check", model, model.with_name("dist.mlir"))


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b", ".."])
def test_weights_outside_the_folder(tmp_path: Path, name: str):
    text = f'module attributes {{dist.weights = "{name}"}} {{ {TWO_LAYERS} }}'
    text = text.replace("module attributes", "builtin.module attributes")
    model = write_program(tmp_path / "model.mlir", text)
    assert "bare file name" in failure("check", model, model)


NO_BODY = """
func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}) -> (tensor<8x16xf32> {dist.name = "y"})
"""
NO_CALLEE = """
func.func private @f(tensor<8x16xf32>) -> tensor<8x16xf32>
func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}) -> (tensor<8x16xf32> {dist.name = "y"}) {
  %y = func.call @f(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
"""


@pytest.mark.parametrize(("text", "name"), [(NO_BODY, "@main"), (NO_CALLEE, "@f")])
@pytest.mark.parametrize(
    "command",
    [
        "distribute {} --cluster cpu -d 2 -o o.mlir",
        "distribute {} --cluster cpu -p 2 -k 2 -o o.mlir",
        "simulate {}",
        "check {} {}",
        "search {} --cluster cpu --world-size 2",
        "lower {} -o package",
    ],
)
def test_functions_without_a_body(tmp_path: Path, text: str, name: str, command: str):
    path = write_program(tmp_path / "declared.mlir", text)
    message = failure(*command.format(path, path).split())
    assert f"function {name} has 0 blocks" in message


def test_weights_file_is_missing(tmp_path: Path):
    text = f'builtin.module attributes {{dist.weights = "w.safetensors"}} {{ {TWO_LAYERS} }}'
    model = write_program(tmp_path / "model.mlir", text)
    assert "w.safetensors" in failure("check", model, model)


def test_inputs_of_the_wrong_shape(model: Path):
    inputs = model.with_name("inputs.npz")
    np.savez(inputs, x=np.zeros((8, 17), np.float32))
    message = failure("check", model, model, "--inputs", inputs)
    assert "'x' is float32[8, 17]" in message and "float32[8, 16]" in message


def test_inputs_of_another_kind(model: Path):
    inputs = model.with_name("inputs.npz")
    np.savez(inputs, x=np.zeros((8, 16), np.int64))
    assert "'x' is int64" in failure("check", model, model, "--inputs", inputs)


def test_input_that_the_program_lacks(model: Path):
    inputs = model.with_name("inputs.npz")
    np.savez(inputs, z=np.zeros((8, 16), np.float32))
    message = failure("check", model, model, "--inputs", inputs)
    assert "'z'" in message and "'x'" in message


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\3\4"])
def test_unreadable_inputs(model: Path, content: bytes):
    inputs = model.with_name("inputs.npz")
    inputs.write_bytes(content)
    assert "inputs.npz" in failure("check", model, model, "--inputs", inputs)


@pytest.mark.parametrize(
    ("offset", "value"),
    [(6, 255), (8, 1), (10, 99), (10, 8), (10, 14)],
    ids=["version", "encrypted", "unknown method", "deflate", "lzma"],
)
def test_inputs_whose_archive_is_damaged(model: Path, offset: int, value: int):
    inputs = model.with_name("inputs.npz")
    np.savez(inputs, x=np.zeros((8, 16), np.float32))
    content = bytearray(inputs.read_bytes())
    # In the directory, which readers believe more than the entry's own header.
    content[content.index(b"PK\x01\x02") + offset] = value
    inputs.write_bytes(content)
    message = failure("check", model, model, "--inputs", inputs)
    assert "inputs.npz is not a readable .npz file" in message


def test_pickled_inputs_are_refused(model: Path):
    inputs = model.with_name("inputs.npz")
    np.savez(inputs, x=np.array([{}], dtype=object))
    assert "inputs.npz" in failure("check", model, model, "--inputs", inputs)


def test_programs_with_other_arguments(model: Path):
    other = write_program(
        model.with_name("other.mlir"), TWO_LAYERS.replace('"x"', '"z"')
    )
    assert "not the same program" in failure("check", model, other)


def test_programs_with_other_outputs(model: Path):
    text = TWO_LAYERS.replace(
        "-> (tensor<8x16xf32> {dist.name", "-> (tensor<8x32xf32> {dist.name"
    )
    text = text.replace(
        "func.return %y : tensor<8x16xf32>", "func.return %a : tensor<8x32xf32>"
    )
    other = write_program(model.with_name("other.mlir"), text)
    assert "not the same program" in failure("check", model, other)


def test_program_that_differs_fails_the_check(model: Path):
    other = write_program(
        model.with_name("other.mlir"), TWO_LAYERS.replace("onnx.Relu", "onnx.Neg")
    )
    from support.command_line import distir

    done = distir("check", model, other)
    assert done.code == 1
    assert "DIFFERS" in done.output and not done.errors


def test_module_without_program(tmp_path: Path):
    model = write_program(tmp_path / "model.mlir", "builtin.module {}")
    assert "no program" in failure(*distribute(model))


def test_output_folder_is_missing(model: Path):
    output = model.parent / "missing" / "dist.mlir"
    message = failure("distribute", model, "--cluster", "cpu", "-o", output, code=2)
    assert str(output.parent) in message


def test_simulating_a_sequential_program(model: Path):
    assert "cluster" in failure("simulate", model)
