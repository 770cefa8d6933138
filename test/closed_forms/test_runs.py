"""
What whole models and runs take, by simulation, against closed forms:

- F6, F8: parameters of a GPT, days of a training (Narayanan et al. 2021, equations 2, 4);
- F7: model and hardware FLOPs utilisation (Korthikanti et al. 2022, section 6.3);
- O3: data parallelism over links that cost nothing scales linearly;
- I1: the least time of a decoded token, bound by reading the weights;
- M5: bytes of a cache of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from closed_forms.chains import chain
from closed_forms.towers import (
    Sizes,
    distributed,
    flops,
    per_layer,
    post_norm,
    tower,
    training_step,
)
from support.cost_programs import cluster, parse
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_mlp
from distir.interpreters.simulator import Simulation, simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass


def exact(value: float) -> object:
    """Equal but for float rounding."""
    return pytest.approx(value, rel=1e-12, abs=0.0)


SC21 = [
    (1.7, 24, 2304), (3.6, 30, 3072), (7.5, 36, 4096), (18.4, 40, 6144), (39.1, 48, 8192),
    (76.1, 60, 10240), (145.6, 80, 12288), (310.1, 96, 16384), (529.6, 105, 20480),
    (1008.0, 128, 25600),
]  # fmt: skip
"""Billions of parameters, layers and width of the models of SC'21's Table 1."""


def parameters(layers: int, h: int, vocab: int, s: int) -> int:
    """Elements of the parameters of a GPT, by what they take in simulated memory."""
    module = build_gpt(layers, h, 1, vocab, 1, s, "bf16")
    _, *held = simulate(module, cluster(1)).run.arguments  # token ids first
    return sum(int(np.max(allocation.size)) for allocation in held) // 2


@pytest.mark.parametrize(
    ("layers", "h", "expected"),
    [
        (96, 12288, 174615822336),
        (128, 25600, 1008038707200),
        *((layers, h, round(billions * 1e9)) for billions, layers, h in SC21),
    ],
)
def test_f6_parameters_of_a_gpt(layers: int, h: int, expected: int) -> None:
    """12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)), and the last norm, which is 2 h."""
    vocab, s = 51200, 2048
    found = parameters(layers, h, vocab, s)
    formula = 12 * layers * h**2 + 13 * layers * h + (vocab + s) * h
    assert found == formula + 2 * h
    # The table rounds to a tenth of a billion, the vectors are exact.
    assert abs(formula - expected) <= (0.05e9 if expected % 10**8 == 0 else 0)


def test_f7_utilisation() -> None:
    """
    Model FLOPs over n * peak * t: 530B parameters, a sample on each of 280 A100s, 37.83 s.
    One of these devices is simulated; its own step time makes its `mfu`.
    """
    x, peak = Sizes(h=20480, a=128, b=1, s=2048, v=51200), 312e12
    result = simulate(distributed(training_step(tower(105, x))))
    (model,) = result.flops
    assert 280 * model / (280 * peak * 37.83) == exact(0.5604618357851928)
    assert result.mfu == exact(model / (peak * result.step_time_s))


def test_f7_hardware_utilisation() -> None:
    """What is computed again counts in HFU: 4 / 3 where all of a layer is (see F4)."""
    x = Sizes(h=12288, a=96, b=1, s=2048)

    def at_peak(result: Simulation) -> list[float]:
        return result.seconds_at_peak

    model = per_layer(at_peak, x, change=post_norm)
    hardware = per_layer(at_peak, x, change=post_norm, checkpoint="full")
    assert hardware / model == pytest.approx(4 / 3, rel=1e-9)
    again = per_layer(useful, x, change=post_norm, checkpoint="full")
    assert again == exact(model)


def useful(result: Simulation) -> list[float]:
    """Seconds at peak of forward and backward alone, which make `mfu`."""
    pairs = zip(result.seconds_at_peak, result.recomputed_at_peak, strict=True)
    found = [every - again for every, again in pairs]
    assert result.mfu * result.step_time_s * len(found) == exact(sum(found))
    mean = float(np.mean(result.seconds_at_peak))
    assert result.hfu * result.step_time_s == exact(mean)
    return found


@pytest.mark.parametrize("policy", ["none", "selective", "full", "whole"])
def test_f7_fused_attention(policy: str) -> None:
    """
    Per layer 72 B s h^2 (1 + s / (6 h)), whatever is computed again. The gradient of
    fused attention has its scores computed again: 2 B s^2 h, which only HFU counts.
    """
    x = Sizes(h=1024, a=16, b=2, s=512)
    model = 72 * x.b * x.s * x.h**2 * (1 + x.s / (6 * x.h))
    scores = 2 * x.b * x.s**2 * x.h
    found = per_layer(useful, x, fused=True, checkpoint=policy)
    every = per_layer(lambda r: r.seconds_at_peak, x, fused=True, checkpoint=policy)
    peak = flops_per_second(x)
    assert found * peak == exact(model)
    # `selective` finds no attention but the fused one, which keeps no scores. Of a
    # forward, `full` leaves out the last product, whose result nothing needs.
    forward = model / 3
    last = 8 * x.b * x.s * x.h**2
    more = {"none": 0, "selective": 0, "full": forward - last}
    assert every * peak == exact(model + scores + more.get(policy, forward))


def flops_per_second(x: Sizes) -> float:
    """The peak of the devices that towers are simulated on."""
    work = per_layer(flops, x)
    return work / per_layer(lambda r: r.seconds_at_peak, x)


def test_f8_days_with_recomputation() -> None:
    """
    8 T P / (n X): each of the 12 h^2 parameters of a layer's matrices takes part in 8
    operations a token. The formula leaves out attention's 16 B s^2 h.
    """
    x = Sizes(h=12288, a=96, b=1, s=2048)
    found = per_layer(flops, x, change=post_norm, checkpoint="full")
    each = (found - 16 * x.b * x.s**2 * x.h) / (x.b * x.s * 12 * x.h**2)
    assert each == 8
    days = each * 300e9 * 174.6e9 / (1536 * 141e12) / 86400
    assert days == exact(22.393986406619387)


def test_f8_days_without_recomputation() -> None:
    """6 T P / (n X), but for the first matrix, whose input needs no gradient."""
    sizes, batch, devices, rate = [2048, 12288, 49152, 12288], 64, 4, 141e12
    weights = [a * b for a, b in pairwise(sizes)]
    module = chain(sizes, batch, optimizer="sgd")
    on = cluster(devices, levels=((devices, 1e300, 0.0),), peak=rate)
    result = simulate(on_cluster(module, on, d=devices))
    tokens = 300e9
    run = tokens / batch * result.step_time_s
    formula = (6 * sum(weights) - 2 * weights[0]) * tokens / (devices * rate)
    assert run == exact(formula)


def on_cluster(module: ModuleOp, on: object, **options: int) -> ModuleOp:
    """The module distributed over that cluster."""
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)  # type: ignore[arg-type]
    DistributePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    return module


MODELS: dict[str, Callable[[int], ModuleOp]] = {
    "cross_entropy": lambda d: build_gpt(2, 64, 4, 128, 4 * d, 16),
    "mse": lambda d: build_mlp(3, 32, 8 * d),
}


@pytest.mark.parametrize("loss", MODELS)
def test_o3_data_parallelism_scales_linearly(loss: str) -> None:
    """With free links and no launch cost, d devices do d times the samples."""

    def throughput(d: int) -> float:
        module = MODELS[loss](d)
        DifferentiatePass(loss=loss, optimizer="adam").apply(Context(), module)
        on = cluster(d, levels=((d, 1e300, 0.0),), peak=1e12, bandwidth=1e11)
        return simulate(on_cluster(module, on, d=d)).throughput_samples_per_s

    one = throughput(1)
    for d in (2, 8, 64):
        assert throughput(d) == exact(d * one)


@pytest.mark.parametrize(
    ("t", "milliseconds"), [(1, 16.720257234726688), (2, 8.360128617363344)]
)
def test_i1_decoding_reads_the_weights(t: int, milliseconds: float) -> None:
    """
    13e9 parameters of 2 bytes at 1555 GB/s on each of t devices: no token takes less. What
    it takes more is what the 130 matrices read and write besides, a row each.
    """
    h, count, bandwidth = 10_000, 130, 1555e9
    bound = h * h * count * 2 / (t * bandwidth)
    assert 1e3 * bound == exact(milliseconds)
    arguments = [
        f'%w{i}: tensor<{h}x{h}xbf16> {{dist.role = "parameter"}}' for i in range(count)
    ]
    row = f"tensor<1x{h}xbf16>"
    lines = [
        f"%x{i + 1} = onnx.MatMul(%x{i}, %w{i}) : ({row}, tensor<{h}x{h}xbf16>) -> {row}"
        for i in range(count)
    ]
    module = parse(
        f'func.func @main(%x0: {row} {{dist.role = "input"}}, {", ".join(arguments)}) '
        f"-> {row} {{\n" + "\n".join(lines) + f"\nfunc.return %x{count} : {row}\n}}"
    )
    on = cluster(t, levels=((t, 1e300, 0.0),), peak=1e300, bandwidth=bandwidth)
    result = simulate(on_cluster(module, on, t=t))
    # A matrix that is split by rows has a whole result, one by columns a whole operand.
    rows = 2 * h if t == 1 else h + h // t
    assert result.step_time_s == exact(bound + count * 2 * rows / bandwidth)


def test_m5_cache_of_keys_and_values() -> None:
    """2 L kv d bytes tokens batch: Llama-2-70B, 80 layers, 8 groups of 128, 32768 tokens."""
    layers, groups, width, tokens = 80, 8, 128, 32768
    cache = f"tensor<1x{groups}x{tokens}x{width}xf16>"
    query = f"tensor<1x64x1x{width}xf16>"

    def peak(count: int) -> int:
        arguments = [
            f'%{kind}{i}: {cache} {{dist.role = "state"}}'
            for i in range(count)
            for kind in "kv"
        ]
        lines = [
            f"%x{i + 1} = onnx.Attention(%x{i}, %k{i}, %v{i}) : "
            f"({query}, {cache}, {cache}) -> {query}"
            for i in range(count)
        ]
        module = parse(
            f'func.func @main(%x0: {query} {{dist.role = "input"}}, '
            f"{', '.join(arguments)}) -> {query} {{\n"
            + "\n".join(lines)
            + f"\nfunc.return %x{count} : {query}\n}}"
        )
        (bytes_,) = simulate(module, cluster(1)).peak_memory_bytes
        return bytes_

    assert layers * (peak(3) - peak(2)) == 10737418240
