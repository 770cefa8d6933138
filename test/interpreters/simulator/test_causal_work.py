"""What a causal mask leaves to devices that have parts of a sequence, and the ring's time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cost_programs import cluster
from support.programs import parse
from xdsl.context import Context

from distir.interpreters.simulator import simulate
from distir.interpreters.train.attention import seen_pairs
from distir.passes.distribute import DistributePass

LENGTH, DEVICES = 256, 4
FLOPS = 2 * LENGTH**2 * (8 + 8)
"""Of one head of 8, as the model's FLOPs are counted: without the mask."""


def time(context: str, order: str, *, speed: float = 1e300, causal: bool = True) -> Any:
    """The simulation of attention over one sequence on devices of one FLOP a second."""
    x = f"tensor<1x1x{LENGTH}x8xf32>"
    ids = f"tensor<1x{LENGTH}xf32>"
    module = parse(f"""
      func.func @main(%i: {ids} {{dist.role = "input", dist.name = "i"}}) -> {x} {{
        %s = onnx.Constant() {{value = dense<[1, 1, {LENGTH}, 1]> : tensor<4xi64>}}
            : () -> tensor<4xi64>
        %t = onnx.Constant() {{value = dense<[1, 1, {LENGTH}, 8]> : tensor<4xi64>}}
            : () -> tensor<4xi64>
        %h = onnx.Reshape(%i, %s) : ({ids}, tensor<4xi64>) -> tensor<1x1x{LENGTH}x1xf32>
        %q = onnx.Expand(%h, %t)
            : (tensor<1x1x{LENGTH}x1xf32>, tensor<4xi64>) -> {x}
        %y = onnx.Attention(%q, %q, %q) {{is_causal = {int(causal)} : i64}}
            : ({x}, {x}, {x}) -> {x}
        func.return %y : {x}
      }}""")
    first = module.body.block.first_op
    assert first is not None
    links = ((DEVICES, speed, 0.0),)
    module.body.block.insert_op_before(cluster(DEVICES, levels=links), first)
    options: dict[str, Any] = {"context": context, "context_order": order}
    DistributePass(c=DEVICES, **options).apply(Context(), module)
    return simulate(module)


@pytest.mark.parametrize("run", [None, 1, 4])
def test_all_steps_of_a_ring_see_what_all_keys_are(run: int | None) -> None:
    by_step = [seen_pairs(64, 4, run, step) for step in range(4)]
    np.testing.assert_array_equal(sum(by_step), seen_pairs(64, 4, run))
    assert seen_pairs(64, 4, run).sum() == 64 * 65 // 2


def test_cyclic_order_balances() -> None:
    """Within 5 %, where the last of 8 devices has 15 / 8 of its share in sequence."""
    for length, devices in ((1024, 4), (4096, 8), (131072, 64)):
        share = length * (length + 1) / 2 / devices
        run = length // devices // 32
        assert seen_pairs(length, devices, run).max() / share < 1.05
        last = seen_pairs(length, devices).max() / share
        assert last == pytest.approx(2 - 1 / devices, rel=0.01)


def test_gathered() -> None:
    """All wait for the device with the last queries, which see nearly all keys."""
    share = FLOPS / DEVICES
    assert time("gather", "contiguous").step_time_s == pytest.approx(
        share * (2 - 1 / DEVICES), rel=0.01
    )
    assert time("gather", "cyclic").step_time_s == pytest.approx(share, rel=0.05)
    full = time("gather", "contiguous", causal=False)
    assert full.step_time_s == pytest.approx(share)


def test_ring() -> None:
    """In all steps but the first some device sees all of its block in sequence."""
    share = FLOPS / DEVICES
    whole = time("ring", "contiguous")
    assert whole.step_time_s == pytest.approx(share * (2 - 1 / DEVICES), rel=0.01)
    assert time("ring", "cyclic").step_time_s == pytest.approx(share, rel=0.05)


def test_blocks_move_while_devices_compute() -> None:
    """A step's sends take as long as its work, and all but nothing of it is seen."""
    bytes_of_step = 2 * LENGTH // DEVICES * 8 * 4
    speed = bytes_of_step / (FLOPS / DEVICES**2)
    ring = time("ring", "cyclic", speed=speed)
    alone = time("ring", "cyclic").step_time_s
    assert ring.step_time_s < alone * 1.1
    assert time("gather", "cyclic", speed=speed).step_time_s > alone * 1.3
