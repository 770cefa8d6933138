"""Mistakes in what is typed: errors name what was meant, and the file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import distir, failure, succeed, write_program

from distir.suggestions import did_you_mean


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A sequential program."""
    return write_program(tmp_path / "model.mlir")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("simulat {}", "did you mean 'simulate'?"),
        (
            "simulate {} --cluser dgx2",
            "--cluser; did you mean '--cluster'; see `distir simu",
        ),
        (
            "simulate {} extra",
            "there is no argument extra; see `distir simulate --help`",
        ),
        ("simulate {} --zero 7", "invalid choice: '7'; choose from 0, 1, 2, 3"),
        ("simulate {} --html {}.no/x.html", "argument --html: there is no folder"),
        (
            "distribute {} --cluster cpu -o {}.no/x.mlir",
            "argument -o: there is no folder",
        ),
    ],
)
def test_words_that_no_command_knows(model: Path, words: str, message: str):
    arguments = words.format(model, model).split()
    assert message in failure(*arguments, code=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--cluster dgx-a10", "did you mean 'dgx-a100'?"),
        ("--cluster dgx2 --profile A10", "did you mean 'A100'?"),
        ("--cluster dgx2 --shard l0.wieght:0=d -d 2", "did you mean 'l0.weight'?"),
        ("--cluster dgx2 -p 2 --stages l3", "the scopes are l0, l1"),
        (
            "",
            "names no cluster; give one, with `distir simulate --cluster dgx-a100 -d 8`",
        ),
    ],
)
def test_names_that_are_misspelt(model: Path, options: str, message: str):
    assert message in failure("simulate", model, *options.split())


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (".onnx", "import it first, with `distir import "),
        (".safetensors", "holds weights, not a program"),
        (".py", "is Python code, not a program"),
        (".json", "a plan goes to `distir distribute --plan`"),
        (".npz", "they are given with --inputs"),
        (".bin", "is not UTF-8 text; a program is an .mlir file"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "show", "distribute"])
def test_files_that_are_no_programs(
    tmp_path: Path, suffix: str, message: str, command: str
):
    file = tmp_path / f"model{suffix}"
    file.write_bytes(b"\xff\xfe")
    more = ("--cluster", "cpu", "-o", tmp_path / "out.mlir")
    error = failure(command, file, *(more if command == "distribute" else ()))
    assert str(file) in error and message in error


def test_a_python_file_is_no_cluster(model: Path):
    file = model.with_suffix(".py")
    file.write_text("x = 1")
    error = failure("simulate", model, "--cluster", file)
    assert f"{file} is given as a cluster" in error


def test_an_axis_that_splits_nothing_is_one_note(model: Path):
    done = distir("simulate", model, "--cluster", "dgx2", "-t", "3")
    notes = [line for line in done.errors.splitlines() if "axis 't'" in line]
    assert notes == [
        "note: axis 't' of size 3 splits nothing, so that all of its devices do the same: "
        "8 and 16 and 32 cannot be split evenly by 3"
    ]


def test_only_close_names_are_suggested():
    assert did_you_mean("--zro", ["--zero", "--seed"]) == "did you mean '--zero'? "
    assert not did_you_mean("--colour", ["--zero", "--seed"])


def test_external_data_behind_a_link_outside_of_the_folder(tmp_path: Path):
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((16, 16), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 16])],
        [weight],
    )
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    onnx.save(
        helper.make_model(graph),
        blobs / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    for name in ("m.onnx", "m.data"):
        (snapshot / name).symlink_to(blobs / name)
    output = tmp_path / "m.mlir"
    error = failure("import", snapshot / "m.onnx", "-o", output)
    assert f"a symbolic link to {blobs / 'm.data'}" in error and "cp -rL" in error
    succeed("import", blobs / "m.onnx", "-o", output)
