"""The schedule of Megatron for BERT, from the script to processes that run it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.command_line import distir, failure, succeed
from support.imported_programs import imported
from support.models import model as model_of
from support.thoroughness import sampled

from distir.tools.distir_opt import main as optimize

SCRIPT = """
import torch.nn.functional as F

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    layer = s["encoder.layer.*"]
    layer["attention.self"].merge("query", "key", "value", name="qkv")
    layer.plan(
        {
            "attention.self.qkv": Columns("t"),
            "attention.output.dense": Rows("t"),
            "intermediate.dense": Columns("t"),
            "output.dense": Rows("t"),
        }
    )
    s["embeddings.word_embeddings"].param("weight").split(0, "t")
    layer.find(lambda x, b: F.gelu(x + b)).fuse("bias_gelu")
    layer.expect("t", all_reduce=2)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """BERT with its weights, and BERT as the script says, which has the same weights."""
    folder = tmp_path_factory.mktemp("bert")
    model, script, asked = (folder / n for n in ("bert.mlir", "s.py", "asked.mlir"))
    bert = imported("bert")
    # Saving says in the program where its weights are.
    replace(bert, module=bert.module.clone()).save(model)
    script.write_text(SCRIPT)
    output = succeed("schedule", model, script, "--verify", "-o", asked).output
    assert "the whole program" in output
    succeed("check", model, asked)
    return model, asked


@pytest.mark.slow  # test_kernels_in_models runs scheduled steps on processes
@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("options", sampled(["-d 2 -t 2", "-t 2", "-t 1", "-t 4"], 4))
def test_processes_compute_what_hugging_face_does(
    options: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    model, asked = files
    bert = model_of("bert")
    dist, inputs, outputs = (tmp_path / n for n in ("d.mlir", "in.npz", "out.npz"))
    succeed("distribute", asked, "--cluster", "cpu", *options.split(), "-o", dist)
    assert "DIFFERS" not in succeed("check", model, dist).output
    np.savez(inputs, **bert.numpy_inputs)
    succeed(
        *("run", dist, "--backend", "gloo", "--inputs", inputs, "--outputs", outputs)
    )
    found = np.load(outputs)
    for name, expected in bert.numpy_outputs.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4)


def test_the_printed_script_does_the_same_without_python(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    model, asked = files
    printed = tmp_path / "printed.mlir"
    script = model.parent / "s.py"
    printed.write_text(succeed("schedule", model, script, "--print").output)
    applied = distir(printed, "-p", "apply-schedule", command=optimize)
    assert applied.code == 0, applied.errors
    assert applied.output == distir(asked, command=optimize).output


def test_what_brings_in_a_third_all_reduce_is_named(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    model, _ = files
    script, asked = tmp_path / "s.py", tmp_path / "asked.mlir"
    script.write_text(SCRIPT.replace('"output.dense": Rows', '"output.dense": Columns'))
    succeed("schedule", model, script, "-o", asked)
    message = failure("distribute", asked, "--cluster", "cpu", "-t", "2", "-o", asked)
    assert (
        "s.py, line 20: the forward of encoder.layer.0 has 2 all_reduce and 1 all_to_all "
        "and 1 all_gather over 't', expected 2 all_reduce: after onnx.Transpose"
    ) in message
    assert "(in encoder.layer.0.output.dense)" in message


MODEL = """
import torch
from transformers import BertConfig, BertLMHeadModel


def make():
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=64,
        max_position_embeddings=16,
        is_decoder=True,
        use_cache=False,
    )
    return BertLMHeadModel(config).train(), (torch.randint(0, 64, (4, 16)),)
"""


MEGATRON = """
from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    layer = s["bert.encoder.layer.*"]
    layer.plan({"intermediate.dense": Columns("t"), "output.dense": Rows("t")})
    layer["attention.self"].plan({n: Columns("t") for n in ("query", "key", "value")})
"""


@pytest.mark.slow
def test_a_model_with_dropout_is_scheduled_and_trained_by_commands(
    tmp_path: Path,
) -> None:
    """Two devices that a schedule divides lose what one without a schedule does."""
    code, script = tmp_path / "bert.py", tmp_path / "s.py"
    code.write_text(MODEL)
    script.write_text(MEGATRON)
    step = ("--training", "--loss", "cross_entropy", "--optimizer", "sgd")
    step = (*step, "--learning-rate", "0.5")
    model, asked, plain = (tmp_path / n for n in ("m.mlir", "asked.mlir", "p.mlir"))
    succeed("import", f"{code}:make", "--training-mode", "-o", model)
    done = succeed("schedule", model, script, "--verify", *step, "-o", asked)
    assert "a training step" in done.output
    succeed("import", f"{code}:make", *step, "-o", plain)
    assert "train.dropout" in asked.read_text()
    losses: list[npt.NDArray[Any]] = []
    for program, degree in ((plain, "1"), (asked, "2")):
        dist, outputs = tmp_path / "d.mlir", tmp_path / "out.npz"
        succeed("distribute", program, "--cluster", "cpu", "-t", degree, "-o", dist)
        command = ("run", dist, "--backend", "gloo", "--steps", "3")
        succeed(*command, "--outputs", outputs)
        losses.append(np.load(outputs)["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[0][2] < losses[0][0] - 0.01
