"""
Bytes that a training step sends, by simulation, against closed forms: V1 and V4 (tensor
and data parallelism, Narayanan et al. 2021, sections 3.2 and 3.3.2), V2 (sequence
parallelism, Korthikanti et al. 2022, section 4.2.2) and Z2 (ZeRO, Rajbhandari et al. 2020,
section 7).
"""

from math import prod

import pytest
from closed_forms.chains import chain
from closed_forms.towers import (
    Sizes,
    bytes_sent,
    distributed,
    on_each_device,
    per_layer,
    post_norm,
    tower,
    training_step,
)
from support.thoroughness import each_once, sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import MeshOp
from distir.dialects.tensors import shape_of
from distir.frontends.models.basic import build_mlp
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.partition import PartitionPass
from distir.passes.propagate_sharding import PropagateShardingPass
from distir.passes.sequence_parallel import SequenceParallelPass
from distir.passes.tensor_parallel import TensorParallelPass
from distir.program import argument_roles, entry_function

LOSS = 4
"""The loss is a term of a sum on each device: four bytes more to reduce."""


def sent(d: int, zero: int, checkpoint: str = "none") -> tuple[int, int]:
    """Bytes that a device sends in a step of a 3-layer MLP, and bytes of parameters."""
    module = build_mlp(3, 64, 4096)
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
    DistributePass(d=d, zero=zero, checkpoint=checkpoint).apply(Context(), module)
    (volume,) = set(simulate(module).communication_bytes)
    return volume, parameters


@pytest.mark.parametrize(("d", "zero"), each_once([2, 4, 8], [0, 1, 2]))
def test_z2_gradients_cost_twice_the_parameters(d: int, zero: int) -> None:
    """Z2 for stages 0 to 2: 2 (d - 1) / d times the parameters."""
    volume, parameters = sent(d, zero)
    assert volume == 2 * (d - 1) * (parameters + LOSS) // d


@pytest.mark.parametrize("d", sampled([4, 2, 8], 3))
def test_z2_stage_3_gathers_twice(d: int) -> None:
    """
    Z2 for stage 3: parameters are gathered in the forward and again in the backward,
    and gradients scattered: 3 (d - 1) / d times the parameters, but for what the backward
    does not need: biases, and the first matrix, since no gradient of the input is asked.
    """
    volume, parameters = sent(d, 3)
    matrices = 2 * 64 * 64 * 4
    assert volume == (d - 1) * (2 * parameters + matrices + 2 * LOSS) // d


@pytest.mark.parametrize("d", sampled([8, 2, 4], 3))
def test_z2_stage_3_gathers_twice_with_recomputation(d: int) -> None:
    """
    Z2 for stage 3 with full recomputation: the backward of a layer needs every parameter
    of it, several times, and gathers it once: 3 (d - 1) / d times the parameters.
    """
    volume, parameters = sent(d, 3, "full")
    assert volume == (d - 1) * (3 * parameters + 2 * LOSS) // d


@pytest.mark.parametrize(("zero", "factor"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_z2_volume_of_each_stage(zero: int, factor: int) -> None:
    """2 P for stages 0 to 2 and 3 P for stage 3, by what some matrices add."""
    few, more = (
        on_each_device(bytes_sent, distributed(chain([128] * n, 64), d=64, zero=zero))
        for n in (3, 5)
    )
    assert (more - few) * 64 == factor * 63 * (2 * 2 * 128 * 128)


@pytest.mark.parametrize(
    ("k", "stage"), each_once([2, 4], [(1, 0, 2), (2, 1, 1), (3, 3, 0)])
)
def test_z2_volume_with_micro_batches(k: int, stage: tuple[int, int, int]) -> None:
    """
    Stage 1 adds gradients up and reduces them once: 2 P. Stage 2 scatters those of each
    micro-batch and gathers once: (k + 1) P. Stage 3 does all of its 3 P for each: 3 k P.
    """
    zero, each, once = stage
    few, more = (
        on_each_device(
            bytes_sent, distributed(chain([128] * n, 64 * k), d=64, zero=zero, k=k)
        )
        for n in (3, 5)
    )
    assert (more - few) * 64 == (each * k + once) * 63 * (2 * 2 * 128 * 128)


def test_v4_gradients_of_data_parallelism() -> None:
    """2 (d - 1) / d times the bytes of gradients, for d = 16, 1e9 parameters, bf16."""
    loss = 4
    module = distributed(chain([20_000, 25_000, 20_000], 16, optimizer="sgd"), d=16)
    volume = on_each_device(bytes_sent, module)
    assert volume == round(3_750_000_000 + 2 * 15 / 16 * loss)


GPT3 = Sizes(h=12288, a=96, b=1, s=2048)
ELEMENTS = 2 * GPT3.b * GPT3.s * GPT3.h * 7 // 8
"""Elements that a device sends in an all-reduce of the hidden state over 8 devices."""


def test_v1_all_reduces_of_tensor_parallelism() -> None:
    """
    Two all-reduces in the forward and two in the backward: 8 b s h (t - 1) / t elements.
    Full recomputation adds the two of the forward, if both are needed again: that of the
    MLP is if a norm follows it, and is not in GPT, where it is only added (as F4), unless
    whole layers run again.
    """
    assert 4 * ELEMENTS == 176_160_768
    forward = [
        on_each_device(bytes_sent, distributed(tower(n, GPT3), t=8)) for n in (2, 3)
    ]
    assert forward[1] - forward[0] == 2 * (2 * ELEMENTS)
    assert per_layer(bytes_sent, GPT3, t=8) == 2 * (4 * ELEMENTS)
    again = per_layer(bytes_sent, GPT3, t=8, checkpoint="full", change=post_norm)
    assert again == 2 * (6 * ELEMENTS)
    assert per_layer(bytes_sent, GPT3, t=8, checkpoint="full") == 2 * (5 * ELEMENTS)
    assert per_layer(bytes_sent, GPT3, t=8, checkpoint="whole") == 2 * (6 * ELEMENTS)


def with_sequence_parallelism(module: ModuleOp, residuals: str) -> ModuleOp:
    """What `distribute` does for t = 8, with a choice of residuals."""
    block = module.body.block
    for op in (
        load_cluster("dgx-a100"),
        MeshOp("mesh", "dgx_a100", [("t", 8)], range(8)),
    ):
        assert block.first_op is not None
        block.insert_op_before(op, block.first_op)
    for pass_ in (
        SequenceParallelPass(residuals=residuals),
        TensorParallelPass("t"),
        PropagateShardingPass(),
        PartitionPass(),
    ):
        pass_.apply(Context(), module)
    return module


def test_v2_sequence_parallelism_sends_as_much() -> None:
    """
    Reduce-scatters and all-gathers replace the all-reduces: the same bytes, in the
    forward and, where a layer keeps for its backward what it gathered, in the step.
    Where it keeps parts (M1's memory), the backward gathers the inputs of its two
    matrices again: two all-gathers of b s h elements, half an all-reduce each.
    """
    layers = (3, 4)
    forward = [
        on_each_device(
            bytes_sent, distributed(tower(n, GPT3), t=8, sequence_parallel=True)
        )
        for n in layers
    ]
    assert forward[1] - forward[0] == 2 * (2 * ELEMENTS)
    for residuals, count in (("whole", 4), ("parts", 4 + 2 / 2)):
        few, more = (
            on_each_device(
                bytes_sent,
                with_sequence_parallelism(training_step(tower(n, GPT3)), residuals),
            )
            for n in layers
        )
        assert more - few == 2 * (count * ELEMENTS)
    assert per_layer(bytes_sent, GPT3, t=8, sequence_parallel=True) == 2 * 5 * ELEMENTS
