"""
Mixtures of experts of Hugging Face on real processes, with experts dealt out: PyTorch's
training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.expert_models import expert_model, experts_step, imported_experts
from support.training_programs import assert_descended, distributed
from torch.nn.functional import cross_entropy
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.over_axes import RaggedAllToAllOp
from distir.launch.packages import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.program import reachable_functions
from distir.program.weights import save_weights
from distir.transforms.overlap.kinds import KINDS, erase_kinds, write_kinds
from distir.transforms.overlap.paired_calls import pair_calls
from distir.transforms.overlap.place import place_functions


def assert_trains(program: ModuleOp, name: str, folder: Path, spawner: Spawner) -> None:
    """Checks loss and new parameters of a step against those of PyTorch's module."""
    module, words = expert_model(name)
    labels = words.flip(1)
    loss = cross_entropy(module(words).logits.flatten(0, 1), labels.flatten())
    module.zero_grad()
    loss.backward()
    save_weights(folder / "weights.safetensors", imported_experts(name).weights)
    found = run_package(
        write_package(program, folder / "package"),
        inputs={"input_ids": words.numpy(), "labels": labels.numpy()},
        weights=folder / "weights.safetensors",
        spawner=spawner,
    )
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-5)
    assert_descended(found, module)


def test_mixtral_on_four_processes(tmp_path: Path, spawner: Spawner) -> None:
    """Two groups of experts, each in two parts, on two micro-batches: tokens are gathered."""
    program = distributed(experts_step("mixtral"), e=2, t=2, k=2)
    assert_trains(program, "mixtral", tmp_path, spawner)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("mixtral", {"e": 4}, marks=pytest.mark.slow),
        pytest.param("gpt_oss", {"e": 4}, marks=pytest.mark.slow),
        pytest.param(
            *("mixtral", {"e": 2, "t": 2, "k": 2, "token_dispatch": "all-to-all"}),
            marks=pytest.mark.slow,
        ),
        # Experts over both axes, where a device has parts of two samples.
        (
            "mixtral",
            {"e": 2, "t": 2, "expert_axes": "et", "sequence_parallel": True},
        ),
        pytest.param(
            *(
                "gpt_oss",
                {
                    "d": 2,
                    "t": 2,
                    "expert_axes": "et",
                    "zero": 3,
                    "token_dispatch": "all-to-all",
                },
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("mixtral", {"c": 2, "t": 2, "expert_axes": "ect"}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("gpt_oss", {"d": 2, "e": 2, "zero": 3, "token_dispatch": "all-to-all"}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_tokens_by_all_to_all(
    name: str, options: dict[str, Any], tmp_path: Path, spawner: Spawner
) -> None:
    """Each process sends to others the tokens that chose their experts, and no empty rows."""
    program = distributed(experts_step(name), **options)
    assert any(isinstance(op, RaggedAllToAllOp) for op in program.walk())
    assert_trains(program, name, tmp_path, spawner)


@pytest.mark.slow  # test_ragged has asynchronous all-to-alls of rows
def test_a_forward_beside_a_backward(tmp_path: Path, spawner: Spawner) -> None:
    """The rows of one micro-batch travel while a process computes with those of another."""
    program = distributed(
        experts_step("mixtral"), p=2, e=2, k=2, token_dispatch="all-to-all"
    )
    write_kinds(program)
    assert pair_calls(program)
    place_functions(reachable_functions(program), 1, KINDS)
    erase_kinds(program)
    assert any(
        isinstance(op, RaggedAllToAllOp) and op.is_asynchronous for op in program.walk()
    )
    assert_trains(program, "mixtral", tmp_path, spawner)
