"""What layers keep for the backward under sequence parallelism does not change results."""

from __future__ import annotations

import numpy as np
import pytest
from support.thoroughness import sampled
from support.training_programs import training_gpt
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import MeshOp
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.partition import PartitionPass
from distir.passes.propagate_sharding import PropagateShardingPass
from distir.passes.sequence_parallel import SequenceParallelPass
from distir.passes.tensor_parallel import TensorParallelPass
from distir.passes.verify_distribution import VerifyDistributionPass


def gathers(module: ModuleOp) -> int:
    """All-gathers in the text of the program."""
    return sum(op.name == "collective.all_gather" for op in module.walk())


@pytest.mark.parametrize("policy", sampled(["none", "selective", "full"], 2))
def test_residuals_in_parts_and_whole(policy: str):
    module = training_gpt(optimizer="sgd", learning_rate=1.0)
    arguments = random_arguments(module, 2)
    expected = run_program(module, arguments)
    found: dict[str, int] = {}
    for residuals in ("parts", "whole"):
        other = module.clone()
        assert other.body.block.first_op is not None
        mesh = MeshOp("mesh", "box", [("t", 4)], range(4))
        other.body.block.insert_op_before(mesh, other.body.block.first_op)
        for pass_ in (
            ActivationCheckpointPass(policy),
            SequenceParallelPass(residuals=residuals),
            TensorParallelPass("t"),
            PropagateShardingPass(),
            PartitionPass(),
            VerifyDistributionPass(),
        ):
            pass_.apply(Context(), other)
        other.verify()
        for a, b in zip(run_program(other, arguments), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        found[residuals] = gathers(other)
    # The input of the matrix behind the last norm is gathered again; so are those of the
    # layer's two column-split matrices, unless the backward computes them again anyway.
    assert found["parts"] - found["whole"] == 1 + (0 if policy == "full" else 2)
