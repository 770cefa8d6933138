"""
Bytes that a training step sends, by simulation, against closed forms: V4 (gradients of
data parallelism, Narayanan et al. 2021, section 3.3.2) and Z2 (ZeRO, Rajbhandari et al.
2020, section 7).
"""

from math import prod

import pytest
from xdsl.context import Context

from distir.frontends.builders import build_mlp
from distir.hardware import load_cluster
from distir.interpreters.cost import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.program import argument_roles, entry_function
from distir.sharding.rule import shape_of

LOSS = 4
"""The loss is a term of a sum on each device: four bytes more to reduce."""


def sent(d: int, zero: int, batch: int = 4096) -> tuple[int, int]:
    """Bytes that a device sends in a step of a 3-layer MLP, and bytes of parameters."""
    module = build_mlp(3, 64, batch)
    DifferentiatePass(loss="mse", optimizer="adamw").apply(Context(), module)
    function = entry_function(module)
    parameters = sum(
        4 * prod(shape_of(arg.type))
        for arg, role in zip(
            function.body.block.args, argument_roles(function), strict=True
        )
        if role == "parameter"
    )
    block = module.body.block
    assert block.first_op is not None
    block.insert_op_before(load_cluster("dgx-a100"), block.first_op)
    DistributePass(d=d, zero=zero).apply(Context(), module)
    (volume,) = set(simulate(module).communication_bytes)
    return volume, parameters


@pytest.mark.parametrize("d", [2, 4, 8])
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_gradients_cost_twice_the_parameters(d: int, zero: int) -> None:
    """V4, and Z2 for stages 0 to 2: 2 (d - 1) / d times the parameters."""
    volume, parameters = sent(d, zero)
    assert volume == 2 * (d - 1) * (parameters + LOSS) // d


@pytest.mark.parametrize("d", [2, 4, 8])
def test_stage_3_gathers_twice(d: int) -> None:
    """
    Z2 for stage 3: parameters are gathered in the forward and again in the backward,
    and gradients scattered: 3 (d - 1) / d times the parameters, but for what the backward
    does not need: biases, and the first matrix, since no gradient of the input is asked.
    """
    volume, parameters = sent(d, 3)
    matrices = 2 * 64 * 64 * 4
    assert volume == (d - 1) * (2 * parameters + matrices + 2 * LOSS) // d
