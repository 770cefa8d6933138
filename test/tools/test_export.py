"""`distir export`: checkpoints become models that transformers loads, plans Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.command_line import failure, succeed
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import distir

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 8,
    "vocab_size": 16,
    "n_positions": 8,
    "use_cache": False,
}


@pytest.mark.usefixtures("shared_ranks")
def test_a_training_ends_as_a_model_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config, step = tmp_path / "config.json", tmp_path / "step.mlir"
    dist, outputs = tmp_path / "dist.mlir", tmp_path / "outputs.npz"
    config.write_text(json.dumps(CONFIG))
    source = ("--transformers", config, "--task", "causal-lm", "--batch", "4")
    training = ("--seq", "8", "--training", "--loss", "cross_entropy")
    succeed("import", *source, *training, "-o", step)
    options = ("--cluster", "cpu", "-d", "2", "-t", "2", "--zero", "1")
    succeed("distribute", step, *options, "-o", dist)
    folder = tmp_path / "checkpoints"
    run = ("run", dist, "--backend", "gloo", "--steps", "2", "--outputs", outputs)
    succeed(*run, "--checkpoint-dir", folder)
    done = succeed("export", folder, "-o", tmp_path / "model.safetensors")
    assert "model.safetensors" in done.errors
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    found = model.state_dict()
    with np.load(outputs) as archive:
        names = [n for n in archive.files if n in found]
        assert len(names) > 10
        for name in names:
            np.testing.assert_array_equal(found[name].numpy(), archive[name])
    assert model.lm_head.weight is model.transformer.wte.weight
    # DCP alone reads it into the module too.
    other: Any = AutoModelForCausalLM.from_config(model.config)
    state = {"model": other.state_dict()}
    partly = DefaultLoadPlanner(allow_partial_load=True)
    load(state, checkpoint_id=folder / "step-2", planner=partly, no_dist=True)
    for name, value in other.named_parameters():
        torch.testing.assert_close(value, found[name], rtol=0, atol=0)


@pytest.mark.slow  # runtime/test_start_values begins trainings at weights of every form
@pytest.mark.usefixtures("shared_ranks")
def test_weights_of_a_checkpoint_are_where_a_training_begins(tmp_path: Path) -> None:
    step, outputs = tmp_path / "step.mlir", tmp_path / "outputs.npz"
    size = ("--layers", "1", "--d-model", "8", "--heads", "2", "--vocab", "16")
    batch = ("--batch", "4", "--seq", "4", "--training")
    succeed("build", "gpt", *size, *batch, "-o", step)
    losses = list[Any]()
    folder = tmp_path / "checkpoints"
    saving = ("--checkpoint-dir", folder)
    for plan, options in (
        (("-d", "2", "--zero", "1"), ("--steps", "2", *saving)),
        (("-t", "2"), ("--steps", "1", "--weights", folder)),
        (("-t", "2"), ("--steps", "3", *saving, "--resume")),
    ):
        dist = tmp_path / "dist.mlir"
        succeed("distribute", step, "--cluster", "cpu", *plan, "-o", dist)
        run = ("run", dist, "--backend", "gloo", *options, "--outputs", outputs)
        succeed(*run)
        with np.load(outputs) as archive:
            losses.append(archive["loss"])
    # The third loss follows from the parameters alone, not from the optimizer's states.
    assert losses[1][0] == pytest.approx(losses[2][0], rel=1e-6)
    assert losses[1][0] < losses[0][1]
    told = failure("run", dist, "--backend", "gloo", "--weights", folder)
    assert "--weights is of use with --steps only" in told


def test_checkpoints_of_a_script(tmp_path: Path) -> None:
    # A name of a module may be that of the section.
    module = torch.nn.Module()
    module.model = torch.nn.Linear(3, 2).to(torch.bfloat16)
    module.head = torch.nn.Linear(2, 2)
    for state, path in (
        ({"model": module.state_dict(), "step": 3}, tmp_path / "nested"),
        (module.state_dict(), tmp_path / "bare"),
    ):
        save(state, checkpoint_id=path, no_dist=True)
        succeed("export", path, "-o", tmp_path / "m.safetensors")
        found = load_file(tmp_path / "m.safetensors")
        assert found.keys() == module.state_dict().keys()
        for name, value in module.state_dict().items():
            assert torch.equal(found[name], value)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "m.safetensors"
    assert "it has no .metadata" in failure("export", tmp_path, "-o", output)
    save({"w": torch.ones(3)}, checkpoint_id=tmp_path / "one", no_dist=True)
    assert "end in .safetensors" in failure(
        "export", tmp_path / "one", "-o", tmp_path / "m.bin"
    )
    (shard,) = (tmp_path / "one").glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:-9])
    assert "cannot be read" in failure("export", tmp_path / "one", "-o", output)
    (tmp_path / "one" / ".metadata").write_bytes(b"nonsense")
    assert "no checkpoint that can be read" in failure(
        "export", tmp_path / "one", "-o", output
    )
    assert not output.exists()


def test_plans_become_python(tmp_path: Path) -> None:
    step, plan, dist = (tmp_path / n for n in ("step.mlir", "plan.json", "dist.mlir"))
    size = ("--layers", "2", "--d-model", "16", "--heads", "2", "--vocab", "32")
    batch = ("--batch", "4", "--seq", "8", "--training")
    succeed("build", "llama", *size, *batch, "-o", step)
    options = ("--cluster", "cpu", "--world-size", "2", "--degrees", "2,1,1")
    succeed("search", step, *options, "--zero", "3", "--save-plan", plan)
    python = tmp_path / "by_plan.py"
    export = ("--to", "dtensor", "-o", python)
    succeed("export", plan, "--program", step, *export)
    text = python.read_text()
    compile(text, "by_plan.py", "exec")
    assert "import by_plan" in text
    assert 'fully_shard(model, mesh=mesh["d"], reshard_after_forward=True)' in text
    succeed("distribute", step, "--plan", plan, "-o", dist)
    succeed("export", dist, *export)
    assert python.read_text() == text.replace("plan.json", "dist.mlir")
    assert distir.export(dist, tmp_path / "again.py", to="dtensor").read_text() == (
        python.read_text().replace(python.stem, "again")
    )

    assert "add --program" in failure("export", plan, *export)
    assert "leave out --program" in failure("export", dist, "--program", step, *export)
    assert "is not distributed" in failure("export", step, *export)
    wrong = ("--to", "dtensor", "-o", tmp_path / "by-plan.py")
    assert "one that Python can import" in failure("export", dist, *wrong)
    assert "add --to dtensor" in failure(
        "export", tmp_path, "--program", step, "-o", tmp_path / "m.safetensors"
    )
    succeed("distribute", step, "--cluster", "cpu", "-c", "2", "-o", dist)
    assert "choose a plan with c=1" in failure("export", dist, *export)
