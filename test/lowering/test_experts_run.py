"""A Mixtral of Hugging Face on real processes, with its experts dealt out: PyTorch's training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from support.expert_models import expert_model, experts_step, imported_experts
from support.training_programs import assert_descended, distributed

from distir.lowering.launch import Spawner, run_package
from distir.lowering.torch_package import write_package
from distir.weights import save_weights


def test_mixtral_on_four_processes(tmp_path: Path, spawner: Spawner) -> None:
    """Two groups of experts, each in two parts, on two micro-batches."""
    module, words = expert_model("mixtral")
    labels = words.flip(1)
    logits = module(words).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    module.zero_grad()
    loss.backward()

    program = distributed(experts_step("mixtral"), e=2, t=2, k=2)
    weights = imported_experts("mixtral").weights
    save_weights(tmp_path / "weights.safetensors", weights)
    package = write_package(program, tmp_path / "package")
    found = run_package(
        package,
        inputs={"input_ids": words.numpy(), "labels": labels.numpy()},
        weights=tmp_path / "weights.safetensors",
        spawner=spawner,
    )
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-5)
    assert_descended(found, module)
