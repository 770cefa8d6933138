"""Utilisation: MFU counts forward and backward, HFU also products computed again."""

from __future__ import annotations

import pytest
from support.cost_programs import MACHINES, cluster, distributed, parse, simulate_text
from support.training_programs import training_gpt
from xdsl.context import Context

from distir.dialects.dist_attributes import RECOMPUTE, RECOMPUTED
from distir.frontends.models.basic import build_mlp
from distir.interpreters.simulator import Simulation, report, simulate
from distir.passes.differentiate import DifferentiatePass

PRODUCT = "tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>"


def work(result: Simulation) -> float:
    """Returns the seconds at peak that MFU counts, over all devices."""
    return result.mfu * result.step_time_s * len(result.devices)


@pytest.mark.parametrize("options", [{}, {"d": 2, "zero": 3}, {"p": 2, "k": 2}])
def test_recomputation_leaves_the_work_of_the_model(options: dict[str, int]) -> None:
    """MFU times the step is the same with and without; HFU times the step is more."""
    module = training_gpt()
    plain = simulate(distributed(module, MACHINES, **options))
    again = simulate(distributed(module, MACHINES, checkpoint="whole", **options))
    assert work(again) == pytest.approx(work(plain), rel=1e-12)
    assert again.hfu * again.step_time_s > plain.hfu * plain.step_time_s
    assert again.to_json()["hfu"] == again.hfu > again.mfu
    assert f"(hfu {again.hfu:.6g})" in report(again)
    forward = simulate(distributed(build_mlp(1, 8, 4), MACHINES, d=2))
    assert forward.mfu == forward.hfu > 0 and "hfu" not in report(forward)


def test_a_single_op_that_the_backward_computes_again() -> None:
    """A chain of three products of 1024 operations; the second is computed again."""
    four = ", ".join(["tensor<8x8xf32>"] * 4)
    module = parse(f"""
    func.func private @layer(%x: tensor<8x8xf32>, %a: tensor<8x8xf32>, %b: tensor<8x8xf32>, %c: tensor<8x8xf32>) -> tensor<8x8xf32> {{
      %1 = onnx.MatMul(%x, %a) : ({PRODUCT}
      %2 = onnx.MatMul(%1, %b) {{{RECOMPUTE} = "full"}} : ({PRODUCT}
      %3 = onnx.MatMul(%2, %c) : ({PRODUCT}
      func.return %3 : tensor<8x8xf32>
    }}
    func.func @main(%x: tensor<8x8xf32> {{dist.role = "input", dist.name = "x"}},
                    %a: tensor<8x8xf32> {{dist.role = "parameter", dist.name = "a"}},
                    %b: tensor<8x8xf32> {{dist.role = "parameter", dist.name = "b"}},
                    %c: tensor<8x8xf32> {{dist.role = "parameter", dist.name = "c"}}) -> tensor<8x8xf32> {{
      %y = func.call @layer(%x, %a, %b, %c) : ({four}) -> tensor<8x8xf32>
      func.return %y : tensor<8x8xf32>
    }}""")
    DifferentiatePass(optimizer="sgd").apply(Context(), module)
    result = simulate(module, cluster(1))
    # Forward 3, gradients of weights 3, of inputs 2; and one product again.
    assert result.seconds_at_peak == [9 * 1024]
    assert result.recomputed_at_peak == [1024]
    assert result.mfu / result.hfu == pytest.approx(8 / 9)


def test_a_call_that_computes_again() -> None:
    """All of it counts, but what counts by itself counts once; other calls do not."""
    result = simulate_text(
        f"""
    func.func private @inner(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
      %y = onnx.MatMul(%x, %x) : ({PRODUCT}
      func.return %y : tensor<8x8xf32>
    }}
    func.func private @outer(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
      %y = onnx.MatMul(%x, %x) {{{RECOMPUTED}}} : ({PRODUCT}
      %z = func.call @inner(%y) : (tensor<8x8xf32>) -> tensor<8x8xf32>
      func.return %z : tensor<8x8xf32>
    }}
    func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
      %a = func.call @outer(%x) {{{RECOMPUTED}}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
      %b = func.call @inner(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
      func.return %b : tensor<8x8xf32>
    }}""",
        cluster(1),
    )
    assert result.seconds_at_peak == [3 * 1024]
    assert result.recomputed_at_peak == [2 * 1024]
