"""Parameters that are read in parts from files of weights."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.parallel_pretrained import (
    MIXTRAL,
    Layers,
    experts_read,
    memory_of_reading,
    messages,
    names_in_base,
    read_and_written,
)
from support.parallel_scripts import tiny_gpt
from support.ranks import run_ranks
from support.thoroughness import chosen

Plan = dict[str, Any]

PLANS: list[Plan] = [
    dict(d=2, zero=3),
    dict(t=2),
    dict(p=2, k=2),
    dict(d=2),
    dict(d=2, p=2, k=2, zero=1),
    dict(d=2, t=2, zero=3),
]


def _ranks(plan: Plan) -> int:
    return prod(plan.get(axis, 1) for axis in "detp")


@pytest.mark.parametrize("plan", chosen(PLANS, [PLANS[1]]), ids=str)
def test_a_folder_of_several_files(plan: Plan, tmp_path: Path) -> None:
    """What `save_pretrained` wrote is read, trained, and written again."""
    folder, written = tmp_path / "model", tmp_path / "trained"
    model: Any = tiny_gpt(layers=1)
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    for found in run_ranks(_ranks(plan), read_and_written, plan, folder, written):
        assert found["read"] == 0
        assert found["written"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("plan", [dict(e=2, d=1), dict(t=2), dict(d=2, zero=3)])
def test_experts_that_files_hold_apart(plan: Plan, tmp_path: Path) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    model = MixtralForCausalLM(MixtralConfig(**MIXTRAL))
    model.save_pretrained(tmp_path / "model")
    assert run_ranks(2, experts_read, plan, tmp_path / "model") == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan", [dict(d=2, zero=3), dict(t=2), dict(d=2, t=2, zero=3), dict(p=2, k=2)]
)
def test_a_rank_reads_its_parts_alone(plan: Plan, tmp_path: Path) -> None:
    """Weights of 64 MiB: a rank needs the memory of its parts, and half of one layer."""
    torch.manual_seed(0)
    tensors = {name: t.contiguous() for name, t in Layers().state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    for found in run_ranks(_ranks(plan), memory_of_reading, plan, tmp_path):
        assert found["own"] == pytest.approx(64 / _ranks(plan))
        assert found["peak"] < 1.1 * found["own"] + 16 / _ranks(plan) + 2


def test_files_of_the_base_model(tmp_path: Path) -> None:
    """They have neither the prefix `transformer.` nor the head, which is tied."""
    model: Any = tiny_gpt(layers=1)
    model.transformer.save_pretrained(tmp_path)
    (found,) = run_ranks(1, names_in_base, tmp_path)
    assert found == dict(model.named_parameters()).keys()


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    for name in ("other", "short", "nothing", "lost", "part"):
        (tmp_path / name).mkdir()
    save_file({"w": torch.ones(2)}, tmp_path / "other" / "model.safetensors")
    save_file({"weight": torch.ones(4, 8)}, tmp_path / "short" / "a.safetensors")
    save_file({"weight": torch.ones(8, 8)}, tmp_path / "lost" / "a.safetensors")
    save_file({"weight": torch.full((8, 8), 3.0)}, tmp_path / "part" / "a.safetensors")
    index = {"weight_map": {"weight": "a.safetensors", "bias": "a.safetensors"}}
    path = tmp_path / "lost" / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    (found,) = run_ranks(1, messages, tmp_path)
    other, short, nothing, lost, missing, part = found
    assert "has none of the module's parameters, such as ['weight', 'bias']" in other
    assert "has 'weight' with shape [4, 8], and the module has [8, 8]" in short
    assert "neither a checkpoint" in nothing
    assert "a.safetensors has no 'bias', which model.safetensors.index.json" in lost
    assert "missing" in missing
    assert "lacks 1 of the parameters (bias)" in part
