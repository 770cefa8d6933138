"""Mistakes in what is typed: errors name what was meant, and the file that is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.command_line import distir, failure, succeed, write_program

from distir.errors import did_you_mean
from distir.tools import distir_opt


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
        (
            "build mlp --layers 1 --d-model 4 --batch 2 -o {} --heads 3",
            "there is no argument --heads; see `distir build mlp --help`",
        ),
        ("build llama --size 8b -o {}", "did you mean '8B'?"),
        (
            "build mlp --layers 10001 --d-model 4 --batch 2 -o {}",
            "at most 10000 are possible",
        ),
        ("cluster --kind A100 --memory 40 -o {}", "say of what, such as 40GB"),
        ("search {} --cluster cpu --plot x.png", "has to end in .svg, as in x.svg"),
        ("search {} --cluster cpu --save-plan p.mlir", "has to end in .json"),
        ("lower {} -o {}", "is a file; give the name of a folder"),
        ("lower {} -o out --kernels no.py", "no.py is no file"),
        ("simulate {} --json /", "/ is a folder; give the name of a file in it"),
        ("distribute {} --cluster cpu -o x.onnx", "not .onnx: give x.mlir"),
    ],
)
def test_words_that_no_command_knows(model: Path, words: str, message: str):
    arguments = words.format(model, model).split()
    assert message in failure(*arguments, code=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--cluster dgx-a10", "did you mean 'dgx-a100'?"),
        ("--cluster CPU", "did you mean 'cpu'?"),
        ("--cluster dgx2 --profile a100", "did you mean 'A100'?"),
        ("--cluster /", "/ is a folder; a cluster is a file"),
        ("--cluster dgx2 -d 2 --shard l0.weight:0=d:0", "give at least 1, or leave :0"),
        (
            "--cluster dgx2 -p 2 --stages search --stages l1",
            "'search' says of all stages where they begin",
        ),
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


def test_files_that_are_not_there_or_empty(model: Path):
    error = failure("show", model.with_name("modle.mlir"))
    assert f"modle.mlir: No such file or directory; did you mean '{model}'?" in error
    assert f"{model.parent} is a folder" in failure("show", model.parent)
    empty = model.with_name("empty.mlir")
    empty.write_text("\n")
    assert f"{empty} is empty; write the program" in failure("show", empty)
    error = failure("show", model, "--cluster", empty)
    assert f"{empty} is empty; `distir cluster` writes" in error
    assert "`distir-opt` reads a program that is piped" in failure("show", "-")
    error = failure("show", model, "--cluster", model)
    assert "holds none; `distir cluster` writes one" in error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.mlir", "is a program already, it needs no import"),
        ("model.pt", "holds weights, not a model; give a function that makes"),
        ("config.json", "is given with --transformers"),
        ("", "is a folder; give the .onnx file in it"),
    ],
)
def test_files_that_are_no_models(model: Path, name: str, message: str):
    file = model.parent / name
    if name:
        file.touch()
    error = failure("import", file, "-o", model.with_name("out.mlir"))
    assert str(file) in error and message in error


@pytest.mark.parametrize("name", ["bad.npz", "one.npy"])
def test_files_that_are_no_inputs(model: Path, name: str):
    file = model.with_name(name)
    if name == "bad.npz":
        file.write_bytes(b"PK")
    else:
        np.save(file, np.zeros(2))
    error = failure("check", model, model, "--inputs", file)
    assert str(file) in error and "numpy.savez" in error and "pickle" not in error


def test_a_schedule_that_is_no_text(model: Path):
    file = model.with_suffix(".csv")
    file.write_bytes(b"\xff\xfe")
    options = ("--cluster", "cpu", "-p", "2", "-k", "2", "--schedule-file", file)
    assert f"{file} is not text in UTF-8; a schedule" in failure(
        "simulate", model, *options
    )


def test_checkpoints_that_are_none(model: Path):
    output = ("-o", model.with_name("out.safetensors"))
    error = failure("export", model, *output)
    assert f"{model} is a file, not the folder of a checkpoint" in error
    assert "there is no folder" in failure("export", model.with_name("no"), *output)


def test_names_of_kinds_of_devices(tmp_path: Path):
    error = failure("cluster", "--kind", "a100", "-o", tmp_path / "a.mlir")
    assert "did you mean 'A100'?" in error
    # A file may be called as no cluster can be.
    succeed("cluster", "--kind", "A100", "-o", tmp_path / "8gpus.mlir")
    assert "@cluster_8gpus" in (tmp_path / "8gpus.mlir").read_text()


def test_a_forward_program_is_named_when_it_is_to_be_trained(model: Path):
    error = failure("run", model, "--backend", "gloo", "--steps", "2")
    assert f"{model} updates no argument" in error and "--training" in error


@pytest.mark.usefixtures("shared_ranks")
def test_a_learning_rate_does_not_fall_upwards(tmp_path: Path):
    step = tmp_path / "step.mlir"
    sizes = ("--layers", "1", "--d-model", "4", "--batch", "2")
    succeed("build", "mlp", *sizes, "--training", "-o", step)
    run = ("run", step, "--backend", "gloo", "--steps", "2")
    error = failure(*run, "--decay", "linear", "--min-lr", "5")
    assert "--min-lr 5 is more than 0.001" in error


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
        "8, 16 and 32 cannot be split evenly by 3"
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{} -p distribut", "['distribut']; did you mean 'distribute'?"),
        ("{} -p nothing-like-it", "; `distir-opt --help` lists them"),
        ("{}.onnx", "is an ONNX model, not a program: import it first"),
        ("{}.empty.mlir", ".empty.mlir is empty; write the program again"),
        ("{}.other.mlir", ".other.mlir is not UTF-8 text"),
    ],
)
def test_mistakes_in_what_distir_opt_is_given(
    model: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
):
    Path(f"{model}.empty.mlir").touch()
    Path(f"{model}.other.mlir").write_bytes(b"\xff")
    with pytest.raises(SystemExit) as ended:
        distir_opt.main(words.format(model).split())
    assert ended.value.code == 1
    assert message in capsys.readouterr().err


def test_only_close_names_are_suggested():
    assert did_you_mean("a100", ["A100", "V100"]) == "did you mean 'A100'? "
    assert did_you_mean("--zro", ["--zero", "--seed"]) == "did you mean '--zero'? "
    assert not did_you_mean("--colour", ["--zero", "--seed"])


def test_external_data_behind_a_link_outside_of_the_folder(tmp_path: Path):
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
