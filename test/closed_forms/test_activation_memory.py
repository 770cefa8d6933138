"""
Bytes of activations that a training step keeps, by simulation, against closed forms: M1
and M2 (Korthikanti et al. 2022, section 4.1 and Table 2) and M4 (Chen et al. 2016).

Layers share their weights here, so that the peak grows from layer to layer by what a
layer keeps for its backward and by nothing else. Masks of dropout are stored
(`dropout_masks=stored`), a byte for each element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from closed_forms.towers import (
    Sizes,
    attention_alone,
    mlp_alone,
    peak_memory,
    per_layer,
    without_norms,
)
from programs import parse
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from distir.hardware import load_cluster
from distir.interpreters.cost import Simulation, simulate
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.differentiate import DifferentiatePass

MODELS = {
    "22B": Sizes(h=6144, a=64, b=4, s=2048),
    "175B": Sizes(h=12288, a=96, b=1, s=2048),
    "530B": Sizes(h=20480, a=128, b=1, s=2048),
    "1T": Sizes(h=25600, a=160, b=1, s=2048),
}
COLUMNS: dict[str, dict[str, Any]] = {
    "none": {},
    "tp": {"t": 8},
    "tp_sp": {"t": 8, "sequence_parallel": True},
    "tp_sel": {"t": 8, "checkpoint": "selective"},
    "tp_sp_sel": {"t": 8, "sequence_parallel": True, "checkpoint": "selective"},
    "full": {"checkpoint": "full"},
}
BYTES = {
    "none": (7079985152, 2868903936, 4110417920, 5138022400),
    "tp": (1325400064, 578813952, 880803840, 1101004800),
    "tp_sp": (884998144, 358612992, 513802240, 642252800),
    "tp_sel": (654311424, 327155712, 545259520, 681574400),
    "tp_sp_sel": (213909504, 106954752, 178257920, 222822400),
    "full": (100663296, 50331648, 83886080, 104857600),
}
"""Per column of Table 2, bytes of each of the models."""


@pytest.mark.parametrize(
    ("column", "model", "expected"),
    [
        (column, model, expected)
        for column, row in BYTES.items()
        for model, expected in zip(MODELS, row, strict=True)
    ],
)
def test_m1_activation_bytes_per_layer(column: str, model: str, expected: int) -> None:
    """Every entry of Table 2."""
    x = MODELS[model]
    sbh, t = x.s * x.b * x.h, 8
    squares = 5 * x.a * x.s * x.s * x.b
    formulas = {
        "none": 34 * sbh + squares,
        "tp": 10 * sbh + 24 * sbh // t + squares // t,
        "tp_sp": (34 * sbh + squares) // t,
        "tp_sel": 10 * sbh + 24 * sbh // t,
        "tp_sp_sel": 34 * sbh // t,
        "full": 2 * sbh,
    }
    assert formulas[column] == expected
    found = per_layer(peak_memory, x, dropout=0.1, **COLUMNS[column])
    assert found == expected


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("change", "each", "squares"),
    [(attention_alone, 11, 5), (mlp_alone, 19, 0), (without_norms, 11 + 19, 5)],
)
def test_m2_activation_bytes_of_the_blocks(
    model: str, change: Callable[[FuncOp], None], each: int, squares: int
) -> None:
    """
    Attention keeps 11 sbh + 5 a s^2 b, the MLP 19 sbh. The norms keep the other 4 sbh of
    a layer: without them it keeps 30 sbh + 5 a s^2 b.
    """
    x = MODELS[model]
    expected = each * x.s * x.b * x.h + squares * x.a * x.s * x.s * x.b
    assert per_layer(peak_memory, x, dropout=0.1, change=change) == expected


WIDTH, BATCH = 64, 4096
ACTIVATION = 4 * WIDTH * BATCH
"""Bytes of one activation."""


def segments(layers: int, length: int, policy: str = "full") -> Simulation:
    """
    A step of so many linear layers with ReLU, in segments that are functions of their
    own, which the backward recomputes.
    """
    x, w = f"tensor<{BATCH}x{WIDTH}xf32>", f"tensor<{WIDTH}x{WIDTH}xf32>"

    def calls(name: str, count: int) -> str:
        return "\n".join(
            f"  %h{i + 1} = func.call @{name}(%h{i}, %w) : ({x}, {w}) -> {x}"
            for i in range(count)
        )

    weight = f'%w: {w} {{dist.role = "parameter", dist.name = "w"}}'
    module = parse(f"""
        func.func @main(%h0: {x} {{dist.role = "input", dist.name = "x"}}, {weight}) -> {x} {{
        {calls("segment", layers // length)}
          func.return %h{layers // length} : {x}
        }}
        func.func private @segment(%h0: {x}, {weight}) -> {x} {{
        {calls("layer", length)}
          func.return %h{length} : {x}
        }}
        func.func private @layer(%x: {x}, {weight}) -> {x} {{
          %h = onnx.MatMul(%x, %w) : ({x}, {w}) -> {x}
          %y = onnx.Relu(%h) : ({x}) -> {x}
          func.return %y : {x}
        }}""")
    return simulated(module, policy)


def simulated(module: ModuleOp, policy: str) -> Simulation:
    """The training step on one device."""
    DifferentiatePass(loss="mse", optimizer="sgd").apply(Context(), module)
    ActivationCheckpointPass(policy).apply(Context(), module)
    return simulate(module, load_cluster("dgx-a100"))


@pytest.mark.parametrize(("layers", "best"), [(64, 8), (100, 10)])
def test_m4_checkpoints_of_segments(layers: int, best: int) -> None:
    """
    L layers in segments of k keep L / k + k activations at the peak (beside it label,
    weight and the gradients of one layer, which are there for any L and k), least for
    k = sqrt(L): 2 sqrt(L). That costs one more forward.
    """
    beside = segments(4, 2).peak_memory_bytes[0] - (4 // 2 + 2) * ACTIVATION
    lengths = [k for k in range(2, layers + 1) if layers % k == 0]
    found = {k: segments(layers, k).peak_memory_bytes[0] - beside for k in lengths}
    assert found == {k: (layers // k + k) * ACTIVATION for k in lengths}
    assert min(found, key=lambda k: found[k]) == best
    assert found[best] == 2 * best * ACTIVATION
    forward = layers * 2 * BATCH * WIDTH * WIDTH
    (without,) = segments(layers, best, "none").flops
    assert segments(layers, best).flops == [without + forward]
