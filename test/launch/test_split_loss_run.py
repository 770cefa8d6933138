"""A loss whose classes are split over processes, against PyTorch's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.thoroughness import sampled
from support.training_programs import package, training_head
from torch.nn import functional

from distir.interpreters.inputs import random_arguments
from distir.launch.packages import Spawner, run_package
from distir.program import argument_names, entry_function


@pytest.mark.parametrize(
    ("options", "ignored"),
    sampled([({"d": 2, "t": 2}, 5), ({"t": 2}, -100)], 2),
    ids=str,
)
def test_loss_and_update(
    options: dict[str, int], ignored: int, tmp_path: Path, spawner: Spawner
) -> None:
    module = training_head((4, 6), 32, ignored)
    names = argument_names(entry_function(module))
    given = dict(zip(names, random_arguments(module, 1), strict=True))
    given["labels"].flat[::5] = ignored
    folder = package(module, tmp_path, shard=("w:1=t",), **options)
    assert "cross_entropy_part_grad" in (folder / "program.py").read_text()
    results = run_package(folder, inputs=given, timeout_s=60, spawner=spawner)

    weight = torch.tensor(given["w"], requires_grad=True)
    logits = (torch.tensor(given["x"]) @ weight).reshape(-1, 32)
    labels = torch.tensor(given["labels"]).reshape(-1)
    loss = functional.cross_entropy(logits, labels, ignore_index=ignored)
    loss.backward()
    assert weight.grad is not None
    expected = {"loss": loss, "w": weight - weight.grad}
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            results[name], value.detach().numpy(), rtol=1e-5, atol=1e-6
        )
