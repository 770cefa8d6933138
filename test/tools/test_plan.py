"""`distir plan`, and `distir export` to training systems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distir.tools.cli import main

SCRIPT = """#!/bin/bash
GPUS_PER_NODE=8
MODEL_ARGS=(
    --num-layers 4
    --hidden-size 256
    --num-attention-heads 8
    --seq-length 128
    --max-position-embeddings 128
    --hidden-dropout 0.0
    --attention-dropout 0.0
)
PARALLEL="--tensor-model-parallel-size 2 \\
    --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"
torchrun --nproc-per-node $GPUS_PER_NODE --nnodes 1 pretrain_gpt.py ${MODEL_ARGS[@]} \\
    $PARALLEL --micro-batch-size 2 --global-batch-size 16 --bf16 --lr 1e-4 \\
    --vocab-size 512 --data-path $1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script, and the plan that `distir plan` makes of it."""
    path = tmp_path_factory.mktemp("plan")
    (path / "args.sh").write_text(SCRIPT)
    assert planned(path / "args.sh", path / "plan.json") == 0
    return path


def planned(source: Path, output: Path, system: str = "megatron", *more: str) -> int:
    options = ["--from", system, "--cluster", "dgx-a100", "-o", str(output), *more]
    return main(["plan", str(source), *options])


def exported(plan: Path, system: str, output: Path) -> str:
    assert main(["export", str(plan), "--to", system, "-o", str(output)]) == 0
    return output.read_text()


def flags(text: str) -> dict[str, str]:
    lines = [line.strip(" \\") for line in text.splitlines()]
    return {n: v for n, _, v in (x.partition(" ") for x in lines if x[:2] == "--")}


def changed(folder: Path, tmp_path: Path, **fields: Any) -> Path:
    data = json.loads((folder / "plan.json").read_text())
    data["result"] |= fields
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(data))
    return path


def test_the_same_flags_come_back(folder: Path, tmp_path: Path):
    found = flags(exported(folder / "plan.json", "megatron", tmp_path / "a.sh"))
    assert found == {
        "--tensor-model-parallel-size": "2",
        "--pipeline-model-parallel-size": "2",
        "--sequence-parallel": "",
        "--num-layers": "4",
        "--hidden-size": "256",
        "--num-attention-heads": "8",
        "--seq-length": "128",
        "--max-position-embeddings": "128",
        "--hidden-dropout": "0",
        "--attention-dropout": "0",
        "--micro-batch-size": "2",
        "--global-batch-size": "16",
        "--vocab-size": "512",
        "--bf16": "",
        "--use-distributed-optimizer": "",
        "--lr": "1e-4",
        "--data-path": "$1",
    }


def test_a_degree_that_is_changed_changes_the_flags(folder: Path, tmp_path: Path):
    plan = changed(folder, tmp_path, t=4, d=1, k=8, zero=0, checkpoint="whole")
    found = flags(exported(plan, "megatron", tmp_path / "a.sh"))
    assert found["--tensor-model-parallel-size"] == "4"
    assert found["--recompute-granularity"] == "full"
    assert "--use-distributed-optimizer" not in found


def test_prediction(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(folder / "args.sh"), "--from", "megatron",
                 "--cluster", "dgx-a100"]) == 0  # fmt: skip
    out, err = capsys.readouterr()
    assert "8 devices: d=2 t=2 p=2, 4 micro-batches of 2, ZeRO 1" in out
    assert "step time" in out and "MFU" in out and "limited by" in out
    assert "--lr, --data-path" in err


def test_a_plan_is_read_like_others(folder: Path):
    from distir.planning.plans.saved_plan import SavedPlan

    plan = SavedPlan.load(folder / "plan.json")
    assert plan.devices == 8 and plan.batch == 16 and plan.trains
    assert plan.run is not None and plan.run["model"]["layers"] == 4


@pytest.mark.parametrize(
    ("system", "name", "texts"),
    [
        ("megatron-bridge", "a.py", ["cfg.model.tensor_model_parallel_size = 2"]),
        ("nemo", "a.yaml", ["tensor_model_parallel_size: 2", "micro_batch_size: 2"]),
        ("accelerate", "a.yaml", ["megatron_lm_pp_degree: 2", "num_processes: 8"]),
    ],
)
def test_other_systems(
    folder: Path, tmp_path: Path, system: str, name: str, texts: list[str]
):
    found = exported(folder / "plan.json", system, tmp_path / name)
    assert all(text in found for text in texts)


@pytest.mark.parametrize(
    ("system", "name", "reason"),
    [
        ("deepspeed", "a.json", "pipelines of 2"),
        ("torchtitan", "a.toml", "no flavor"),
        ("nanotron", "a.yaml", "LLaMA"),
        ("nanotron", "a.json", "has to end in .yaml"),
    ],
)
def test_what_a_system_cannot_run(
    folder: Path, tmp_path: Path, system: str, name: str, reason: str,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    arguments = ["--to", system, "-o", str(tmp_path / name)]
    assert main(["export", str(folder / "plan.json"), *arguments]) == 1
    assert reason in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("--num-layers 4", "--num-layers four", "line 4: --num-layers wants a number"),
        ("--num-layers 4", "--num-layers $L", "--set L=VALUE"),
        ("parallel-size 2 \\", "paralel-size 2 \\", "did you mean"),
        ("--lr 1e-4", "--multi-latent-attention", "cannot be predicted"),
        ("--nnodes 1", "--nnodes $N", "--set N=N"),
        ("GPUS_PER_NODE=8", "GPUS_PER_NODE=2", "cannot be divided"),
        ("--global-batch-size 16", "--global-batch-size 17", "choose a multiple of"),
        ("${MODEL_ARGS[@]}", "", "does not say the number of layers"),
        ("--bf16", "--bf16 --fp8-format hybrid --fp8-recipe mxfp8", "mxfp8"),
    ],
)
def test_what_cannot_be_read(
    tmp_path: Path, old: str, new: str, reason: str, capsys: pytest.CaptureFixture[str]
):
    assert old in SCRIPT
    (tmp_path / "args.sh").write_text(SCRIPT.replace(old, new, 1))
    assert planned(tmp_path / "args.sh", tmp_path / "plan.json") == 1
    assert reason in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "plan.json").exists()


def test_improve(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The first run that is tried, with one micro-batch instead of two, is faster."""
    small = SCRIPT
    for old, new in (
        ("GPUS_PER_NODE=8", "GPUS_PER_NODE=2"),
        ("--num-layers 4", "--num-layers 2"),
        ("--pipeline-model-parallel-size 2 ", ""),
        (" --use-distributed-optimizer", ""),
        ("--global-batch-size 16", "--global-batch-size 4"),
    ):
        assert old in small
        small = small.replace(old, new)
    script = tmp_path / "args.sh"
    script.write_text(small)
    assert planned(script, tmp_path / "plan.json") == 0
    capsys.readouterr()
    assert planned(script, tmp_path / "better.json", "megatron", "--improve", "2") == 0
    out = capsys.readouterr().out
    assert "GBS unchanged" in out and "% faster" in out
    before, after = (
        json.loads(path.read_text())["result"]
        for path in (tmp_path / "plan.json", tmp_path / "better.json")
    )
    assert after["batch"] == before["batch"]
    assert after["step_time_s"] < before["step_time_s"]
