"""
Bytes of activations that a training step keeps, by simulation, against closed forms: M1,
M2 and M3 (Korthikanti et al. 2022, sections 4.1 to 4.3) and M4 (Chen et al. 2016).

Layers share their weights here, so that the peak grows from layer to layer by what a
layer keeps for its backward and by nothing else. Masks of dropout are stored
(`dropout_masks=stored`), a byte for each element.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from closed_forms.towers import (
    Sizes,
    attention_alone,
    distributed,
    mlp_alone,
    peak_memory,
    per_layer,
    tower,
    training_step,
    without_norms,
)
from support.programs import parse
from support.thoroughness import chosen, each_once, sampled
from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, TensorType, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.tensors import shape_of
from distir.hardware import load_cluster
from distir.interpreters.simulator import Simulation, simulate
from distir.interpreters.simulator.reports.memory_report import MemoryReport
from distir.interpreters.simulator.reports.value_kinds import ACTIVATIONS, RECEIVED
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.differentiate import DifferentiatePass
from distir.program import entry_function, return_op, scope_of

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


@pytest.mark.parametrize(("column", "model"), each_once(list(BYTES), list(MODELS)))
def test_m1_activation_bytes_per_layer(column: str, model: str) -> None:
    """Every entry of Table 2."""
    x, expected = MODELS[model], BYTES[column][list(MODELS).index(model)]
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
    statistics = {
        **dict.fromkeys(("none", "tp", "tp_sel"), statistics_of(2, x)),
        **dict.fromkeys(("tp_sp", "tp_sp_sel"), statistics_of(2, x) // t),
        "full": 0,
    }
    found = per_layer(peak_memory, x, dropout=0.1, **COLUMNS[column])
    assert found == expected + statistics[column]


def statistics_of(norms: int, x: Sizes) -> int:
    """
    Bytes of the mean and of the inverse standard deviation of each row, in f32, which norms
    keep and the table leaves out.
    """
    return norms * 2 * 4 * x.s * x.b


@pytest.mark.parametrize(
    ("column", "model"),
    chosen(
        product(("none", "tp", "tp_sp", "tp_sp_sel"), MODELS),
        [("none", "22B"), ("tp_sp_sel", "175B")],
    ),
)
def test_m1_without_the_squares(column: str, model: str) -> None:
    """
    Attention that is one op keeps no scores, probabilities or masks: of 34 sbh + 5 a s^2 b
    there remain, without dropout, 32 sbh, and 4 a b s bytes of the sums of exponentials.
    Selective recomputation finds nothing to save.
    """
    x = MODELS[model]
    sbh, t = x.s * x.b * x.h, 8
    sums = 4 * x.a * x.b * x.s
    statistics = statistics_of(2, x)
    formulas = {
        "none": 32 * sbh + sums + statistics,
        "tp": 8 * sbh + (24 * sbh + sums) // t + statistics,
        "tp_sp": (32 * sbh + sums + statistics) // t,
        "tp_sp_sel": (32 * sbh + sums + statistics) // t,
    }
    found = per_layer(peak_memory, x, fused=True, **COLUMNS[column])
    assert found == formulas[column]


@pytest.mark.parametrize(
    ("change", "each", "squares", "model"),
    chosen(
        [
            (*block, model)
            for block in (
                (attention_alone, 11, 5),
                (mlp_alone, 19, 0),
                (without_norms, 11 + 19, 5),
            )
            for model in MODELS
        ],
        [(attention_alone, 11, 5, "175B"), (mlp_alone, 19, 0, "530B")],
    ),
)
def test_m2_activation_bytes_of_the_blocks(
    change: Callable[[FuncOp], None], each: int, squares: int, model: str
) -> None:
    """
    Attention keeps 11 sbh + 5 a s^2 b, the MLP 19 sbh. The norms keep the other 4 sbh of
    a layer: without them it keeps 30 sbh + 5 a s^2 b.
    """
    x = MODELS[model]
    expected = each * x.s * x.b * x.h + squares * x.a * x.s * x.s * x.b
    assert per_layer(peak_memory, x, dropout=0.1, change=change) == expected


def logits_in_f32(module: ModuleOp) -> ModuleOp:
    """Megatron's logits are converted before the loss."""
    main = entry_function(module)
    returned = return_op(main)
    (logits,) = returned.operands
    type_ = TensorType(f32, shape_of(logits.type))
    to = {"to": onnx_element_type(f32)}
    cast = operator("Cast").build_op([logits], [type_], to, {})
    main.body.block.insert_op_before(cast, returned)
    returned.operands[0] = cast.results[0]
    inputs = main.function_type.inputs.data
    main.properties["function_type"] = FunctionType.from_lists(inputs, [type_])
    return module


@pytest.mark.parametrize("layers", sampled([2, 1], 2))
def test_m3_activation_bytes_around_the_layers(layers: int) -> None:
    """
    Beside its layers (M1), a step under tensor and sequence parallelism keeps the mask of
    the input's dropout, sbh / t, and what the last norm, the matrix behind it and the loss
    start from, 4sbh / t (1 + V / h): the logits in f32, of this device's part of the
    vocabulary.
    """
    x, t = Sizes(h=6144, a=64, b=4, s=2048, v=51200), 8
    module = distributed(
        training_step(logits_in_f32(tower(layers, x, dropout=0.1))),
        t=t,
        sequence_parallel=True,
    )
    memory = MemoryReport.of(simulate(module)).largest
    # The loss is known, and its gradient is there in the same moment.
    assert memory.peak_op == "train.cross_entropy_part_grad loss"
    logits = 4 * x.s * x.b * x.v // t
    kept: list[int] = []
    for held in memory.held:
        if held.kind not in (ACTIVATIONS, RECEIVED) or held.value is None:
            continue
        owner = held.value.owner
        assert isinstance(owner, Operation)
        if owner.name == "train.cross_entropy_part_grad":
            assert held.size == logits
        elif shape_of(held.value.type) in ((), (x.b, x.s)):
            # The loss, and the maximum and the sum of each label's logits.
            assert held.size in (4, 4 * x.b * x.s)
        elif owner.name != "onnx.Transpose" or scope_of(owner) != "lm_head":
            kept.append(held.size)  # (that one is the weight, seen from the other side)
    sbh = x.s * x.b * x.h
    layer = BYTES["tp_sp"][0]
    around = sbh // t + 4 * sbh // t + logits
    assert around == 241172480
    assert sum(kept) == layers * layer + around + statistics_of(2 * layers + 1, x) // t


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


@pytest.mark.parametrize(("layers", "best"), sampled([(64, 8), (100, 10)], 2))
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
