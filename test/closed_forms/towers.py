"""
Transformers whose layers share their weights, so that one more layer adds what a layer
computes, keeps and sends, and nothing else: no parameters, states or gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation

from distir.frontends.models.basic import LAYER, build_gpt
from distir.hardware import load_cluster
from distir.interpreters.simulator import Simulation, simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.program import (
    entry_function,
    erase_dead,
    functions,
    return_op,
    scope_of,
)


@dataclass(frozen=True)
class Sizes:
    """Width, heads, batch, sequence, vocabulary."""

    h: int
    a: int
    b: int
    s: int
    v: int = 64


def tower(
    layers: int,
    sizes: Sizes,
    *,
    dropout: float = 0.0,
    fused: bool = False,
    change: Callable[[FuncOp], None] | None = None,
) -> ModuleOp:
    """
    A GPT in bf16 that calls its only layer several times, its attention written out unless
    `fused`. `change` edits the layer.
    """
    x = sizes
    module = build_gpt(
        *(1, x.h, x.a, x.v, x.b, x.s, "bf16"), dropout=dropout, fused_attention=fused
    )
    if change is not None:
        change(functions(module)[LAYER])
    (call,) = (
        op for op in entry_function(module).body.block.ops if isinstance(op, CallOp)
    )
    for _ in range(layers - 1):
        before = call.clone()
        block = call.parent_block()
        assert block is not None
        block.insert_op_before(before, call)
        call.operands[0] = before.results[0]
    return module


def training_step(module: ModuleOp) -> ModuleOp:
    """The module as a training step that stores dropout masks."""
    DifferentiatePass(optimizer="sgd", dropout_masks="stored").apply(Context(), module)
    return module


def distributed(module: ModuleOp, **options: int | str | bool) -> ModuleOp:
    """The module on a cluster that is large enough, with options of `distribute`."""
    devices = prod(int(options.get(axis, 1)) for axis in "rdt")
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(load_cluster("dgx-a100", devices), first)
    DistributePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    return module


def per_layer(
    measure: Callable[[Simulation], list[Any]],
    sizes: Sizes,
    *,
    dropout: float = 0.0,
    fused: bool = False,
    change: Callable[[FuncOp], None] | None = None,
    **options: int | str | bool,
) -> float:
    """What the fourth layer of a training step adds on each device."""
    few, more = (
        on_each_device(
            measure,
            distributed(
                _tower_step(n, sizes, dropout, fused, change).clone(), **options
            ),
        )
        for n in (3, 4)
    )
    return more - few


@functools.lru_cache(maxsize=8)
def _tower_step(
    layers: int,
    sizes: Sizes,
    dropout: float,
    fused: bool,
    change: Callable[[FuncOp], None] | None,
) -> ModuleOp:
    """The training step of a tower; it must stay as it is."""
    return training_step(
        tower(layers, sizes, dropout=dropout, fused=fused, change=change)
    )


def on_each_device(
    measure: Callable[[Simulation], list[Any]], module: ModuleOp
) -> float:
    """What the simulation says, the same on each device."""
    (value,) = set(measure(simulate(module)))
    return value


def peak_memory(simulation: Simulation) -> list[int]:
    """Bytes at the peak, per device."""
    return simulation.peak_memory_bytes


def bytes_sent(simulation: Simulation) -> list[int]:
    """Bytes sent, per device."""
    return simulation.communication_bytes


def flops(simulation: Simulation) -> list[float]:
    """Floating-point operations, per device."""
    return simulation.flops


# Changes of a layer.


def _norms(layer: FuncOp) -> list[Operation]:
    ops = layer.body.block.ops
    return [op for op in ops if op.name == "onnx.LayerNormalization"]


def _additions(layer: FuncOp) -> list[Operation]:
    """The two additions to the residual stream: behind attention and behind the MLP."""
    ops = layer.body.block.ops
    return [
        op for op in ops if op.name == "onnx.Add" and scope_of(op) == "transformer.h.*"
    ]


def post_norm(layer: FuncOp) -> None:
    """
    Puts the norms behind the residual additions, as in the original transformer
    (Vaswani et al. 2017) and in BERT.
    """
    for norm, addition in zip(_norms(layer), _additions(layer), strict=True):
        norm.results[0].replace_all_uses_with(norm.operands[0])
        norm.detach()
        layer.body.block.insert_op_after(norm, addition)
        addition.results[0].replace_all_uses_with(norm.results[0])
        norm.operands[0] = addition.results[0]


def without_norms(layer: FuncOp) -> None:
    """Leaves the norms out."""
    for norm in _norms(layer):
        norm.results[0].replace_all_uses_with(norm.operands[0])
    erase_dead(layer.body.block)


def attention_alone(layer: FuncOp) -> None:
    """Only attention and its residual connection."""
    without_norms(layer)
    return_op(layer).operands[0] = _additions(layer)[0].results[0]
    erase_dead(layer.body.block)


def mlp_alone(layer: FuncOp) -> None:
    """Only the MLP and its residual connection."""
    without_norms(layer)
    hidden = layer.body.block.args[0]
    _additions(layer)[0].results[0].replace_all_uses_with(hidden)
    erase_dead(layer.body.block)
