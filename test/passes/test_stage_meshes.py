"""
Stages on meshes of different shapes: the program stays the same, whatever else is asked for,
and meshes that are searched are as fast as any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.pipelines import assert_same, distributed
from support.programs import parse
from support.thoroughness import IS_THOROUGH
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.dialects.dist import SendOp, layout_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp, build_moe
from distir.frontends.models.t5 import build_t5
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.planning.annotations import read_notes
from distir.program import entry_function
from distir.sharding.mesh import meshes

WIDE = "d=2,t=2"
SMALL: dict[str, Any] = {"heads": 4, "vocab": 16, "batch": 8}


def step(module: ModuleOp, loss: str, **options: Any) -> ModuleOp:
    """Returns the training step of a program."""
    DifferentiatePass(loss=loss, learning_rate=0.1, **options).apply(Context(), module)
    return module


def mlp(width: int = 8, layers: int = 4, batch: int = 8, **options: Any) -> ModuleOp:
    return step(build_mlp(layers, width, batch), "mse", **options)


def gpt(width: int = 8, vocab: int = 16, **options: Any) -> ModuleOp:
    module = build_gpt(4, width, heads=4, vocab=vocab, batch=8, seq=4)
    return step(module, "cross_entropy", **options)


def moe() -> ModuleOp:
    return step(build_moe(2, 8, seq=4, experts=4, **SMALL), "cross_entropy")


def t5() -> ModuleOp:
    module = build_t5(2, 8, seq=4, target_seq=3, **SMALL)
    return step(module, "cross_entropy")


def even_t5() -> ModuleOp:
    module = build_t5(2, 8, seq=4, target_seq=4, **SMALL)
    return step(module, "cross_entropy")


CASES: list[tuple[str, Callable[[], ModuleOp], tuple[str, ...], dict[str, Any]]] = [
    ("embedding of two stages", t5, (WIDE, "t=2"), {"stages": ("decoder.embed_tokens",)}),
    ("more devices later", gpt, ("t=1", WIDE), {}),
    ("other axes", gpt, ("d=2", "t=4"), {}),
    ("no divisors", lambda: mlp(batch=12), ("d=3", "d=2"), {}),
    ("three", gpt, ("d=2", "t=2", "t=1"), {"checkpoint": "full"}),
    ("parts", lambda: mlp(15, batch=24), ("d=2,t=3", "t=5"), {"zero": 1}),
    ("flat", lambda: mlp(15, batch=24), ("d=4", "d=2"), {"zero": 3}),
    ("padded", lambda: gpt(12, 17), ("d=4,t=2", "d=2,t=2"), {"zero": 2}),
    ("clipped", lambda: mlp(clip=1.0), (WIDE, "t=2"), {}),
    ("sequences", gpt, (WIDE, "t=2"), {"sequence_parallel": True}),
    ("chunks", gpt, (WIDE, "t=2"), {"schedule": "interleaved-1f1b"}),
    ("half backwards", gpt, (WIDE, "t=2"), {"schedule": "zb-h1"}),
    ("v", gpt, (WIDE, "t=2"), {"schedule": "dualpipev"}),
    ("overlap", gpt, (WIDE, "t=2"), {"overlap": True}),
    ("ring", gpt, ("c=4", "c=2"), {"context": "ring"}),
    ("cyclic", gpt, ("c=2", "t=2"), {"context_order": "cyclic"}),
    ("two splits of a sequence", even_t5, ("t=2", "c=2"), {"sequence_parallel": True}),
    ("experts", moe, ("e=4", "e=2"), {}),
    ("groups", gpt, ("r=2,d=2", "d=2"), {"zero": 3}),
    ("one rank", gpt, (WIDE,), {}),
]  # fmt: skip
QUICK = (
    *("embedding of two stages", "clipped", "v", "two splits of a sequence"),
    "experts",
)
"""The cases of `make test`, which have what the others take another way through."""


@pytest.mark.parametrize(
    ("module", "shapes", "options"),
    [
        pytest.param(*rest, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, *rest in CASES
    ],
)
def test_same_results(
    module: Callable[[], ModuleOp], shapes: tuple[str, ...], options: dict[str, Any]
) -> None:
    """Distributed, verified and interpreted: the step is that of one device."""
    assert_same(module(), p=len(shapes), k=2, stage_meshes=shapes, **options)


def test_inference() -> None:
    module = build_gpt(4, 8, seq=4, **SMALL)
    assert_same(module, p=2, k=2, stage_meshes=(WIDE, "t=4"))


def test_equal_shapes_are_the_usual_pipeline() -> None:
    module = mlp()
    usual = distributed(module, p=2, k=2, d=2, t=2)
    asked = distributed(module, p=2, k=2, stage_meshes=(WIDE, WIDE))
    assert str(asked) == str(usual)


def test_each_stage_has_its_share_of_work() -> None:
    """A stage of twice as many devices has twice as many layers."""
    module = distributed(mlp(layers=6), p=2, k=2, stage_meshes=("d=2", "d=1"))
    known = meshes(module)
    assert known["stage0"].devices == (0, 1) and known["stage1"].devices == (2,)
    homes = [layout_of(arg) for arg in entry_function(module).body.block.args]
    weights = [f"layers.{i}.weight" for i in range(6)]
    assert len(homes) > len(weights)
    first = sum(home is not None and home.mesh == "stage0" for home in homes)
    second = sum(home is not None and home.mesh == "stage1" for home in homes)
    assert first > 1.8 * second


def test_sends_are_counted() -> None:
    """
    Every device of the second stage is sent its part of an activation, by devices that
    share the work, and every device of the first one its part of the gradient.
    """
    program = step(build_mlp(2, 8, 8), "mse", optimizer="sgd")
    module = distributed(
        program, p=2, k=2, stage_meshes=("d=4", "d=2"), blocking_sends=True
    )
    sends = [
        op for op in entry_function(module).body.block.ops if isinstance(op, SendOp)
    ]
    assert len(sends) == 4  # an activation and a gradient for each micro-batch
    found = simulate(module)
    # 4 x 8 numbers of 4 bytes, and what the all-reduces of weight and bias send: twice
    # three quarters, or a half, of 8 x 8 and 8 numbers; and of the loss.
    gradients = (8 * 8 + 8) * 4
    first, second = 4 * 8 * 4 / 4 * 2, 4 * 8 * 4 / 2 * 2
    whole = [first + 2 * 3 / 4 * gradients] * 4 + [second + gradients + 4] * 2
    assert found.communication_bytes == pytest.approx(whole)


CLUSTER = """
device.cluster @three {
  device.kind @unit on [0 to 3] {memory = 1000000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+6 : f64}, launch_latency = 0.0 : f64}
  device.link @wire spans 3 {bandwidth = 1.0e+9 : f64, latency = 1.0e-6 : f64}
}
"""


def on_three(module: ModuleOp, **options: Any) -> ModuleOp:
    """Returns a pipeline of two ranks on at most three slow devices with fast links."""
    module = module.clone()
    cluster = next(op for op in parse(CLUSTER).walk() if isinstance(op, ClusterOp))
    cluster.detach()
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(cluster, first)
    DistributePass(p=2, k=2, **options).apply(Context(), module)
    module.verify()
    return module


def test_meshes_that_are_searched_use_what_devices_there_are() -> None:
    module = mlp(layers=6)
    found = on_three(module, d=2, stage_meshes=("search",))
    note = read_notes(found)[-1]
    assert note.startswith("stage meshes: d=2; d=1; simulated")
    seconds = simulate(found).step_time_s
    for shapes in (("d=1", "d=1"), ("d=1", "d=2"), ("d=2", "d=1")):
        for stages in (
            ((), ("search",), ("uniform",)) if IS_THOROUGH else (("search",),)
        ):
            asked = on_three(module, stage_meshes=shapes, stages=stages)
            assert seconds <= simulate(asked).step_time_s * (1 + 1e-9)
    assert_same(module, p=2, k=2, d=2, stage_meshes=("search",))


def test_stages_that_are_asked_for_stay() -> None:
    module = mlp(layers=6)
    found = on_three(module, d=2, stage_meshes=("search",), stages=("layers.2",))
    # With four of six layers, the second stage has the more devices.
    assert read_notes(found)[-1].startswith("stage meshes: d=1; d=2; simulated")


def test_more_ranks_than_devices_are_refused() -> None:
    module = mlp(layers=17)
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(load_cluster("cpu"), first)
    searched = DistributePass(p=17, k=2, d=2, stage_meshes=("search",))
    with pytest.raises(
        DistIRError, match="p=17 needs 17 devices, but cluster @cpu has"
    ):
        searched.apply(Context(), module)


def test_errors_say_which_degrees_were_asked_for() -> None:
    message = r"size 6 .* \(for stage_meshes=d=3;d=2, layouts are chosen with d=6\)"
    with pytest.raises(DistIRError, match=message):
        distributed(mlp(batch=8), p=2, k=2, stage_meshes=("d=3", "d=2"))
