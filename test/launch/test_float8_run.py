"""Products in 8-bit floats on processes: scales are those of whole tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.thoroughness import chosen
from support.training_programs import batches, package
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt
from distir.launch.packages import Spawner, Training, run_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.expand_float8 import ExpandFloat8Pass
from distir.passes.float8 import Float8Pass


def step(scaling: str) -> ModuleOp:
    """The training step of a GPT."""
    module = build_gpt(2, 32, 2, 32, 4, 8)
    train = DifferentiatePass(optimizer="sgd", learning_rate=0.1)
    for one in (Float8Pass(scaling), train, ExpandFloat8Pass()):
        one.apply(Context(), module)
    return module


@pytest.mark.parametrize(
    "scaling", chosen(["tensor", "row", "mxfp8", "nvfp4"], ["tensor"])
)
def test_processes_train_as_one(scaling: str, tmp_path: Path, spawner: Spawner) -> None:
    """
    Sums round otherwise on two processes, and now and then another number of 8 or 4 bits
    follows.
    """
    module = step(scaling)
    found: list[Any] = []
    for how in ({"d": 1}, {"t": 2}, {"d": 2, "zero": 3}):
        made = package(module, tmp_path / str(len(found)), **how)
        training = Training(3)
        found.append(
            run_package(
                made, inputs=batches(module), spawner=spawner, training=training
            )
        )
    for other in found[1:]:
        np.testing.assert_allclose(other["loss"], found[0]["loss"], 2e-5)
