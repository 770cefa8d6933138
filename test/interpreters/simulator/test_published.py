"""
A few published measurements, predicted with the built-in profiles: `bench/accuracy.py`
scores all of them.
"""

import pytest
from support.cost_programs import parse
from xdsl.context import Context

from distir.frontends.models.basic import build_gpt
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass


def training_step(module, cluster, devices, **distribution):
    """The distributed training step of a model."""
    DifferentiatePass(optimizer="adam", dropout_masks="stored").apply(Context(), module)
    first = module.body.block.first_op
    module.body.block.insert_op_before(load_cluster(cluster, devices), first)
    DistributePass(**distribution).apply(Context(), module)
    return module


@pytest.mark.parametrize(
    ("ranks", "size", "seconds"),
    [(2, 16 << 20, 131.9e-6), (4, 1 << 30, 7259.4e-6), (8, 64 << 20, 579.9e-6)],
)
def test_all_reduce_of_a100s(ranks, size, seconds):
    """vTrain's NCCL traces: github.com/VIA-Research/vTrain, trace/a100."""
    value = f"tensor<{size}xi8, #dist.layout<@m, [{{}}]"
    module = parse(f"""
      device.mesh @m on @dgx_a100 <d = {ranks}> [0 to {ranks}]
      func.func @main(%x: {value}, partial sum {{d}}>>) -> {value}>> {{
        %y = collective.all_reduce %x over [d] : {value}, partial sum {{d}}>> -> {value}>>
        func.return %y : {value}>>
      }}
    """)
    found = simulate(module, load_cluster("dgx-a100"), profiles=["A100"])
    assert found.step_time_s == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize(
    ("m", "k", "n", "seconds"),
    [
        (4096, 5120, 1536, 262e-6),
        (4096, 576, 7168, 168e-6),
        (4096, 7168, 36864, 9.13e-3),
    ],
)
def test_products_on_an_a100_pcie(m, k, n, seconds):
    """SimuMax: github.com/MooreThreads/SimuMax, configs/system/a100_pcie.json."""
    a, b, c = (f"tensor<{i}x{j}xbf16>" for i, j in ((m, k), (k, n), (m, n)))
    module = parse(f"""
      func.func @main(%a: {a}, %b: {b}) -> {c} {{
        %c = onnx.MatMul(%a, %b) : ({a}, {b}) -> {c}
        func.return %c : {c}
      }}
    """)
    found = simulate(module, load_cluster("dgx-a100"), profiles=["A100-pcie"])
    assert found.step_time_s == pytest.approx(seconds, rel=0.25)


@pytest.mark.parametrize(
    ("width", "micro_batch", "seconds"), [(1024, 1, 0.0892), (2048, 4, 0.1740)]
)
def test_steps_of_gpts_on_two_a100s(width, micro_batch, seconds):
    """
    vTrain: github.com/VIA-Research/vTrain, data/ground_truth_single.csv. The first row is
    bound by the host, the second by the devices.
    """
    model = build_gpt(12, width, 16, 50432, 2 * micro_batch, 1024, "f16", dropout=0.1)
    module = training_step(model, "dgx-a100", 8, t=2, k=2)
    found = simulate(module, profiles=["A100-megatron-deepspeed"])
    assert found.step_time_s == pytest.approx(seconds, rel=0.15)
