"""The schedule of Megatron for BERT, from the script to processes that run it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
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
