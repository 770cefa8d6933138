"""
Closed forms of pipelines, by simulating whole training steps that the passes made:

- PP1, PP2: makespan, bubble and micro-batches in flight of GPipe and 1F1B (Narayanan et
  al. 2021, section 2.2);
- PP3, PP4: interleaved 1F1B (there, and Korthikanti et al. 2022, section 4.2.3);
- PP5: unequal stages (Johnson 1954);
- V3: bytes between stages (Narayanan et al. 2021, sections 3.2 and 4.1);
- V5: the bubble of a pipeline with data parallelism at a fixed batch (Narayanan et al.
  2021, section 3.3.1);
- the bubble of ZB-H1 is a third of that of 1F1B (Qi et al. 2023).

PP6, DistIR's synchronous sends, is in test/interpreters/simulator/test_closed_forms.py.
"""

from collections.abc import Sequence

import pytest
from support.cost_programs import cluster
from support.pipelines import UNEQUAL_STAGES
from support.timed_ops import timed_layers
from xdsl.context import Context

from distir.frontends.models.basic import build_gpt
from distir.interpreters.simulator import Simulation, simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass

EXACT = {"rel": 1e-12, "abs": 0.0}
KEPT = 10**6
"""Elements of the residual of a layer: so many that nothing else counts."""

MB = 2 * 4 * KEPT
"""Its bytes for a micro-batch of two samples."""

Times = tuple[float, float, float]


def pipeline(
    layers: Sequence[Times],
    ranks: int,
    micro_batches: int,
    schedule: str,
    chunks: int | None = None,
    d: int = 1,
) -> Simulation:
    """
    A training step of layers that take so long, two samples per micro-batch and replica.
    """
    module = timed_layers(layers, batch=2 * d * micro_batches, kept=KEPT)
    DifferentiatePass(loss="mse", optimizer="sgd").apply(Context(), module)
    on = cluster(d * ranks, levels=((d * ranks, 1e300, 0.0),), peak=1e300)
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)
    DistributePass(
        d=d,
        p=ranks,
        k=micro_batches,
        schedule=schedule,
        chunks=chunks,
        stages=tuple(f"layers.{i}" for i in range(1, len(layers))),
    ).apply(Context(), module)
    return simulate(module)


def in_flight(simulation: Simulation) -> list[int]:
    """Residuals of micro-batches that each device holds at most at once."""
    return [peak // MB for peak in simulation.peak_memory_bytes]


PP1 = [
    (1, 4, 1, 2, 12),
    (2, 2, 1, 2, 9),
    (4, 8, 1, 2, 33),
    (4, 4, 1, 1, 14),
    (8, 32, 1, 2, 117),
    (16, 16, 3, 5, 248),
]


@pytest.mark.parametrize(("p", "m", "tf", "tb", "makespan"), PP1)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_pp1_makespan_and_pp2_in_flight(p, m, tf, tb, makespan, schedule):
    result = pipeline([(tf, tb / 2, tb / 2)] * p, p, m, schedule)
    assert result.step_time_s == pytest.approx(makespan, **EXACT)
    bubble = (makespan - m * (tf + tb)) / (m * (tf + tb))
    assert bubble == pytest.approx((p - 1) / m, **EXACT)
    assert result.bubble_fraction == pytest.approx((p - 1) / (m + p - 1), **EXACT)
    assert in_flight(result) == (
        [m] * p if schedule == "gpipe" else [min(m, p - stage) for stage in range(p)]
    )


@pytest.mark.parametrize(
    ("p", "m", "v", "tf", "tb", "makespan"),
    [
        (4, 8, 2, 1, 2, 28.5),
        (2, 4, 3, 1, 2, 13),
        pytest.param(16, 32, 8, 2, 4, 203.25, marks=pytest.mark.slow),
    ],
)
def test_pp3_interleaved_makespan(p, m, v, tf, tb, makespan):
    layer = (tf / v, tb / 2 / v, tb / 2 / v)
    result = pipeline([layer] * (p * v), p, m, "interleaved-1f1b", v)
    assert result.step_time_s == pytest.approx(makespan, **EXACT)


@pytest.mark.parametrize(("p", "v"), [(4, 2), (8, 3), (4, 8)])
def test_pp4_interleaved_memory(p, v):
    """Residuals of chunks: 2(p - 1 - r) + (v - 1)p + 1 on rank r, L(1 + (p-1)/(pv)) on 0."""
    result = pipeline([(1, 1, 1)] * (p * v), p, 2 * p, "interleaved-1f1b", v)
    held = in_flight(result)
    assert held == [2 * (p - 1 - r) + (v - 1) * p + 1 for r in range(p)]
    assert held[0] / (p * v) == pytest.approx(1 + (p - 1) / (p * v), **EXACT)


@pytest.mark.parametrize(
    ("forward", "backward", "m", "gpipe", "one", "bound"), UNEQUAL_STAGES
)
def test_pp5_unequal_stages(forward, backward, m, gpipe, one, bound):
    layers = [(f, b / 2, b / 2) for f, b in zip(forward, backward, strict=True)]
    p = len(layers)
    assert pipeline(layers, p, m, "gpipe").step_time_s == pytest.approx(gpipe, **EXACT)
    found = pipeline(layers, p, m, "1f1b").step_time_s
    assert found == pytest.approx(one, **EXACT)
    assert found >= bound


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (8, 16)])
def test_the_bubble_of_zb_h1_is_a_third(p, m):
    """Forward, input's and weight's gradient take equally long."""
    layers = [(1.0, 1.0, 1.0)] * p
    times = {s: pipeline(layers, p, m, s).step_time_s for s in ("1f1b", "zb-h1")}
    assert times["1f1b"] - 3 * m == pytest.approx(3 * (p - 1), **EXACT)
    assert times["zb-h1"] - 3 * m == pytest.approx(p - 1, **EXACT)


@pytest.mark.parametrize(
    ("n", "d", "batch", "b", "bubble"),
    [(64, 8, 512, 1, 0.109375), (64, 32, 512, 1, 0.0625)],
)
def test_v5_data_parallelism_shrinks_the_bubble(n, d, batch, b, bubble):
    """n / d ranks and B / (b d) micro-batches: (n - d) / (B / b). Time in units of b."""
    p, m = n // d, batch // (b * d)
    assert bubble == (n - d) / (batch / b)
    result = pipeline([(1.0, 1.0, 1.0)] * p, p, m, "1f1b", d=d)
    assert result.step_time_s == pytest.approx(3 * m * (1 + bubble), **EXACT)
    assert result.devices == list(range(n))


TIED = 4 * 64 * 32
"""Bytes of the token embedding, which the first and the last stage share."""


def boundary_bytes(
    *, training: bool = False, **options: object
) -> tuple[list[int], int]:
    """What each device sends, and the bytes of a micro-batch's hidden states."""
    b, s, h, k = 8, 16, 32, 4
    module = build_gpt(layers=4, d_model=h, heads=8, vocab=64, batch=b, seq=s)
    if training:
        DifferentiatePass(optimizer="sgd").apply(Context(), module)
    on = cluster(8, levels=((8, 1.0, 0.0),))
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)
    DistributePass(k=k, **options).apply(Context(), module)  # type: ignore[arg-type]
    return simulate(module).communication_bytes, 4 * b // k * s * h


def test_v3_bytes_between_stages():
    """Hidden states for each micro-batch, and once the tied embedding to the last stage."""
    sent, hidden = boundary_bytes(p=2, stages=("uniform",))
    assert sent == [4 * hidden + TIED, 0]
    sent, hidden = boundary_bytes(p=4, stages=("uniform",))
    assert sent == [4 * hidden + TIED, 4 * hidden, 4 * hidden, 0]


def test_v3_training_sends_as_much_back():
    sent, hidden = boundary_bytes(p=2, stages=("uniform",), training=True)
    assert sent == [4 * hidden + TIED, 4 * hidden + TIED]


def test_v3_with_sequence_parallelism_a_part():
    """Between blocks each tensor-parallel device has its part of the sequence."""
    sent, hidden = boundary_bytes(p=2, t=4, stages=("uniform",), sequence_parallel=True)
    plain, _ = boundary_bytes(p=2, t=4, stages=("uniform",))
    assert plain[0] - sent[0] == 4 * (hidden - hidden // 4)


def test_v3_interleaving_sends_v_times_as_much():
    sent, hidden = boundary_bytes(p=2, chunks=2, stages=("uniform",))
    # Three boundaries: two from rank 0 to rank 1, one back.
    assert sent == [4 * 2 * hidden + TIED, 4 * hidden]
