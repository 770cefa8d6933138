"""Training steps on the command line: making, distributing, simulating them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.command_line import failure, succeed, write_program

from distir.interpreters.simulator import simulate
from distir.program import argument_names, argument_roles, entry_function
from distir.tools.distir_opt import main as distir_opt
from distir.tools.files import read_program

MLP = ("build", "mlp", "--layers", "2", "--d-model", "16", "--batch", "8")
GPT = ("build", "gpt", "--layers", "2", "--d-model", "16", "--heads", "4")
GPT = (*GPT, "--vocab", "32", "--seq", "8", "--batch", "4")


@pytest.fixture(scope="module")
def forward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_program(tmp_path_factory.mktemp("forward") / "model.mlir")


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpt") / "gpt.mlir"
    succeed(*GPT, "--training", "-o", path)
    return path


@pytest.fixture(scope="module")
def onnx_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weight = np.random.default_rng(0).standard_normal((6, 4), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path_factory.mktemp("onnx") / "linear.onnx"
    onnx.save(helper.make_model(graph), path)
    return path


def roles(path: Path) -> dict[str, str]:
    entry = entry_function(read_program(path))
    return dict(zip(argument_names(entry), argument_roles(entry), strict=True))


def test_layers_of_a_sequential_are_trained_although_their_names_begin_with_digits(
    tmp_path: Path, onnx_model: Path
):
    model = onnx.load(onnx_model)
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "0.weight"
    onnx.save(model, tmp_path / "sequential.onnx")
    path = tmp_path / "step.mlir"
    options = ("--training", "--loss", "mse", "--optimizer", "adamw")
    succeed("import", tmp_path / "sequential.onnx", *options, "-o", path)
    assert roles(path)["0.weight.exp_avg"] == "state"


def test_a_built_training_step(gpt: Path):
    found = roles(gpt)
    assert found["labels"] == "label"
    assert found["transformer.wte.weight"] == "parameter"
    assert found["transformer.wte.weight.exp_avg"] == "state"
    assert 'dist.updates = "transformer.wte.weight.exp_avg"' in gpt.read_text()


def test_options_of_the_optimizer(tmp_path: Path):
    path = tmp_path / "mlp.mlir"
    options = ("--optimizer", "sgd", "--momentum", "0.5", "--learning-rate", "0.25")
    succeed(*MLP, "--training", *options, "-o", path)
    assert "layers.0.weight.momentum" in roles(path)
    assert "2.5" in path.read_text() and "train.sgd" in path.read_text()


def test_dropout(tmp_path: Path):
    path = tmp_path / "gpt.mlir"
    options = ("--dropout", "0.1", "--dropout-seed", "5")
    succeed(*GPT, "--training", *options, "-o", path)
    assert "train.dropout" in path.read_text() and "seed = 5" in path.read_text()
    assert roles(path)["optimizer.step"] == "state"
    parallel = ("-d", "2", "-t", "2", "--sequence-parallel", "--checkpoint", "full")
    command = ("distribute", path, "--cluster", "cpu", *parallel)
    succeed(*command, "-o", tmp_path / "distributed.mlir")
    assert simulate(read_program(tmp_path / "distributed.mlir")).step_time_s > 0


def test_masks_and_types_of_gradients(tmp_path: Path):
    path = tmp_path / "gpt.mlir"
    options = ("--dropout-masks", "stored", "--gradient-dtype", "f32")
    succeed(
        *GPT, "--dropout", "0.1", "--dtype", "bf16", "--training", *options, "-o", path
    )
    text = path.read_text()
    assert "train.dropout_grad" in text and "dist.reduce_late" in text
    for option in (options[:2], options[2:]):
        message = failure(*GPT, *option, "-o", tmp_path / "other.mlir")
        assert f"{option[0]} is of use with --training only" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--dropout", "0.1"), ("--dropout", "--training")),
        (("--training", "--dropout-seed", "1"), ("--dropout-seed", "--dropout")),
        (("--training", "--dropout", "1"), ("less than 1",)),
        (
            ("--training", "--dropout", "0.5", "--dropout-seed", "4294967296"),
            ("32 bits",),
        ),
    ],
)
def test_unusable_dropout(
    options: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
):
    message = failure(*GPT, *options, "-o", tmp_path / "x.mlir")
    assert all(word in message for word in words), message


def test_decoding(tmp_path: Path):
    """A step that generates, and the prompt that its cache comes from."""
    path = tmp_path / "gpt.mlir"
    index = GPT.index("--seq")
    one = (*GPT[:index], "--seq", "1", *GPT[index + 2 :])
    succeed(*GPT, "--cache", "-o", path)
    assert '"transformer.h.0.attn.key"' in path.read_text()
    succeed(*one, "--decode", "6", "-o", path)
    assert roles(path)["transformer.h.0.attn.value"] == "input"
    for options, words in (
        ((*GPT, "--decode", "6"), "add --seq 1"),
        ((*one, "--decode", "6", "--cache"), "leave out --cache"),
        ((*one, "--decode", "6", "--training"), "leave out --training"),
    ):
        assert words in failure(*options, "-o", path)


def test_an_imported_training_step(onnx_model: Path, tmp_path: Path):
    path = tmp_path / "linear.mlir"
    succeed("import", onnx_model, "--training", "--loss", "mse", "-o", path)
    assert roles(path)["w.exp_avg_sq"] == "state"


def save_dropout(path: Path, training: bool) -> Path:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(
            "Dropout", ["h", "ratio", "mode"], ["y"], name="/drop/Dropout"
        ),
    ]
    weight = np.ones((6, 4), np.float32)
    graph = helper.make_graph(
        nodes,
        "dropout",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 4])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.array(0.5, np.float32), "ratio"),
            numpy_helper.from_array(np.array(training), "mode"),
        ],
    )
    onnx.save(helper.make_model(graph), path)
    return path


def test_an_imported_model_with_dropout(tmp_path: Path):
    """In training mode it is dropped alike on all devices; else not at all."""
    step, distributed = tmp_path / "step.mlir", tmp_path / "distributed.mlir"
    model = save_dropout(tmp_path / "train.onnx", True)
    options = ("--training", "--loss", "mse", "--dropout-seed", "3")
    succeed("import", model, *options, "-o", step)
    assert "train.dropout" in step.read_text() and "seed = 3" in step.read_text()
    command = ("distribute", step, "--cluster", "cpu", "-d", "2", "-t", "2")
    succeed(*command, "-o", distributed)
    succeed("check", step, distributed)
    model = save_dropout(tmp_path / "evaluate.onnx", False)
    succeed("import", model, *options[:3], "-o", step)
    assert "train.dropout" not in step.read_text()
    assert "none in training mode" in failure("import", model, *options, "-o", step)


def test_random_dropout_is_not_distributed(tmp_path: Path):
    model, program = save_dropout(tmp_path / "m.onnx", True), tmp_path / "m.mlir"
    succeed("import", model, "-o", program)
    command = ("distribute", program, "--cluster", "cpu", "-d", "2")
    message = failure(*command, "-o", tmp_path / "d.mlir")
    assert "training step" in message and "(in drop)" in message


def test_import_asks_for_the_loss(onnx_model: Path, tmp_path: Path):
    message = failure("import", onnx_model, "--training", "-o", tmp_path / "x.mlir")
    assert "--loss" in message and "mse" in message


def test_a_result_that_is_not_there(onnx_model: Path, tmp_path: Path):
    command = (
        "import",
        onnx_model,
        "--training",
        "--loss",
        "mse",
        "--loss-output",
        "3",
    )
    assert "no output 3" in failure(*command, "-o", tmp_path / "x.mlir")


@pytest.mark.parametrize(
    "options", [("--optimizer", "sgd"), ("--clip", "1"), ("--loss-output", "1")]
)
def test_options_without_training(options: tuple[str, ...], tmp_path: Path):
    message = failure(*MLP, *options, "-o", tmp_path / "x.mlir")
    assert options[0] in message and "--training" in message


@pytest.mark.parametrize(
    "options",
    [
        ("--loss", "hinge"),
        ("--optimizer", "adamax"),
        ("--learning-rate", "-1"),
        ("--learning-rate", "nan"),
        ("--loss-output", "-1"),
    ],
)
def test_unusable_options(options: tuple[str, ...], tmp_path: Path):
    command = (*MLP, "--training", *options, "-o", tmp_path / "x.mlir")
    assert options[0] in failure(*command, code=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-d", "2", "--zero", "1"), ("ZeRO stage 1", "--training")),
        (("--checkpoint", "full"), ("checkpointing", "--training")),
        (("-t", "2", "--sequence-parallel"), ("no normalization",)),
    ],
)
def test_strategies_that_a_forward_program_does_not_offer(
    options: tuple[str, ...], words: tuple[str, ...], forward: Path, tmp_path: Path
):
    command = ("distribute", forward, "--cluster", "cpu", *options)
    message = failure(*command, "-o", tmp_path / "x.mlir")
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("-t", "2", "--zero", "1"), "larger -d"),
        (("-d", "2", "--sequence-parallel"), "larger -t"),
        (("-d", "3"), "batch of 4"),
    ],
)
def test_strategies_without_the_devices(
    options: tuple[str, ...], word: str, gpt: Path, tmp_path: Path
):
    command = ("distribute", gpt, "--cluster", "cpu", *options)
    assert word in failure(*command, "-o", tmp_path / "x.mlir")


def test_unknown_strategies(gpt: Path, tmp_path: Path):
    command = ("distribute", gpt, "--cluster", "cpu", "-o", tmp_path / "x.mlir")
    failure(*command, "--zero", "4", code=2)
    message = failure(*command, "--checkpoint", "most")
    assert "there is no checkpoint policy 'most'; choose one of none, full" in message


@pytest.mark.parametrize(
    ("options", "word"),
    [("d=2 zero=4", "stage 4"), ('checkpoint="most"', "'most'")],
)
def test_unknown_strategies_of_the_pass(
    options: str, word: str, gpt: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        distir_opt([str(gpt), "-p", f"distribute{{{options}}}"])
    assert ended.value.code == 1
    assert word in capsys.readouterr().err


def test_strategies_of_the_pass(gpt: Path, capsys: pytest.CaptureFixture[str]):
    options = 'd=2 t=2 zero=1 checkpoint="full" sequence_parallel=true'
    with pytest.raises(SystemExit) as ended:
        distir_opt([str(gpt), "-p", f"distribute{{{options}}}"])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    assert "collective.reduce_scatter" in printed.out


def test_each_stage_of_zero_needs_less_memory(gpt: Path, tmp_path: Path):
    peaks: list[int] = []
    for stage in range(4):
        path = tmp_path / f"zero{stage}.mlir"
        command = ("distribute", gpt, "--cluster", "cpu", "-d", "4", "-o", path)
        succeed(*command, "--zero", str(stage), "--no-buckets")
        peaks.append(max(simulate(read_program(path)).peak_memory_bytes))
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--checkpoint-dir", "c"), "--steps"),
        (("--steps", "2", "--save-every", "1"), "--checkpoint-dir"),
        (("--steps", "2", "--resume"), "--checkpoint-dir"),
    ],
)
def test_options_of_a_run_that_need_others(
    options: tuple[str, ...], word: str, gpt: Path
):
    message = failure("run", gpt, "--backend", "gloo", *options)
    assert word in message


@pytest.mark.parametrize(
    "options", [("--steps", "0"), ("--save-every", "-1"), ("--resume", "first")]
)
def test_unusable_options_of_a_run(options: tuple[str, ...], gpt: Path):
    assert options[0] in failure("run", gpt, "--backend", "gloo", *options, code=2)


def test_a_forward_program_cannot_train(forward: Path):
    message = failure("run", forward, "--backend", "gloo", "--steps", "2")
    assert "dist.updates" in message


def test_inputs_of_another_shape(gpt: Path, tmp_path: Path):
    inputs = tmp_path / "in.npz"
    np.savez(inputs, labels=np.zeros((3, 4, 9), np.int64))
    command = ("run", gpt, "--backend", "gloo", "--steps", "2", "--inputs", inputs)
    assert "'labels'" in failure(*command)


@pytest.mark.usefixtures("shared_ranks")
def test_a_run_of_some_steps(gpt: Path, tmp_path: Path):
    inputs, outputs = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(inputs, labels=np.zeros((2, 4, 8), np.int64))
    command = ("run", gpt, "--backend", "gloo", "--steps", "3", "--inputs", inputs)
    folder = tmp_path / "checkpoints"
    done = succeed(*command, "--outputs", outputs, "--checkpoint-dir", folder)
    assert "step 3 of 3: loss " in done.errors
    with np.load(outputs) as archive:
        assert archive["loss"].shape == (3,)
        assert archive["loss"][2] < archive["loss"][0]
        assert archive["transformer.wte.weight"].shape == (32, 16)
    assert [entry.name for entry in folder.iterdir()] == ["step-3"]
