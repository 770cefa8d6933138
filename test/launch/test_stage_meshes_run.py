"""
Pipelines whose stages have meshes of different shapes, on real processes, equal PyTorch in
one process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.thoroughness import sampled
from support.torch_training import assert_equals_pytorch, batch, training_step
from xdsl.context import Context

from distir.launch.packages import Spawner, Training, run_package
from distir.lowering.torch_package import write_package
from distir.passes.distribute import DistributePass
from distir.program.weights import save_weights


@pytest.mark.parametrize(
    ("name", "shapes", "options"),
    sampled(
        [
            # Other axes, numbers of devices and parts of states than the stage before.
            ("gpt2", ("d=2,t=2", "t=2"), {"k": 2, "zero": 3}),
            ("encoder_decoder_deep", ("d=2,t=2", "t=2"), {"k": 4}),
            ("mlp_deep", ("d=2", "t=1"), {"k": 4, "blocking_sends": True}),
            ("gpt2_deep", ("t=1", "d=2"), {"k": 2, "zero": 1}),
            ("gpt2_deep", ("d=2", "t=2"), {"k": 4, "schedule": "zb-h1"}),
            ("gpt2_deep", ("d=2,t=2", "t=4"), {"k": 2, "zero": 3}),
            ("mlp_deep", ("d=4", "d=2", "t=2"), {"k": 2}),
            ("encoder_decoder_deep", ("t=2", "d=2"), {"schedule": "zbv", "k": 4}),
        ],
        8,
    ),
)
def test_training(
    name: str,
    shapes: tuple[str, ...],
    options: dict[str, Any],
    tmp_path: Path,
    spawner: Spawner,
) -> None:
    weights = tmp_path / "model.safetensors"
    save_weights(weights, training_step(name).weights)
    module = training_step(name).module.clone()
    distribute = DistributePass(p=len(shapes), stage_meshes=shapes, **options)
    distribute.apply(Context(), module)
    module.verify()
    results = run_package(
        write_package(module, tmp_path / "package", weights),
        inputs=batch(name),
        weights=weights,
        timeout_s=120,
        spawner=spawner,
        training=Training(3),
    )
    assert_equals_pytorch(name, results)
