"""
What steps of generation take, by simulation, against closed forms:

- bytes of the cache per token of a sequence: 2 L kv d for attention with kv heads of keys
  and values, for multi-head attention and grouped queries alike; no more than the window's
  tokens; r + rope for latents;
- bytes of decode: its device reads all matrices and the whole cache once;
- FLOPs of prefill: products with weights, attention of all pairs, the head once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.cost_programs import cluster
from support.generation import SIZES as GENERATION
from support.generation import imported, quantized_program, tiny_config
from support.thoroughness import sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.generation import build_serving
from distir.frontends.models.llama import build_llama
from distir.frontends.serving import Paging, ServingSizes
from distir.frontends.torch.serving.importer import empty_cache
from distir.frontends.torch.serving.modules import Prefill
from distir.frontends.torch.sources import _parameters_on_meta
from distir.interpreters.simulator import MemoryReport, simulate
from distir.interpreters.simulator.engine.machine import Execution
from distir.interpreters.simulator.reports.value_kinds import CACHES, PARAMETERS
from distir.passes.inline_calls import InlineCallsPass
from distir.planning.distribution.distribute import distribute
from distir.planning.distribution.options import DistributionOptions
from distir.planning.plans.programs import replace_cluster
from distir.program import Program
from distir.program.entries import one_entry
from distir.transforms.precision.cache_quantization import quantize_caches

LAYERS, HEADS, WIDTH, HIDDEN, FFN, VOCAB = 2, 4, 8, 32, 64, 96
GROUP = 8
SIZES = ServingSizes(batch=3, cache=40, prompt=10)


def model_without_values(kind: str, **changes: Any) -> Any:
    config = tiny_config(kind)
    for key, value in changes.items():
        setattr(config, key, value)
    maker: Any = transformers.AutoModelForCausalLM
    with _parameters_on_meta():
        return maker.from_config(config)


def elements(module: ModuleOp, *roles: str) -> int:
    return sum(
        int(np.prod(argument.type.get_shape()))  # type: ignore[attr-defined]
        for argument in Program(module).arguments
        if argument.role in roles
    )


@pytest.mark.parametrize(
    ("kind", "changes", "per_sequence"),
    [
        ("llama", {"num_key_value_heads": 4}, 2 * LAYERS * 4 * WIDTH * 40),
        ("llama", {"num_key_value_heads": 2}, 2 * LAYERS * 2 * WIDTH * 40),
        ("mistral", {"sliding_window": 6}, 2 * LAYERS * 2 * WIDTH * 6),
        ("mistral", {"sliding_window": 64}, 2 * LAYERS * 2 * WIDTH * 40),
        ("deepseek_v3", {}, LAYERS * (8 + 4) * 40),
    ],
)
def test_bytes_of_the_cache(
    kind: str, changes: dict[str, Any], per_sequence: int
) -> None:
    prefill = Prefill(model_without_values(kind, **changes), SIZES)
    tokens = torch.zeros(SIZES.batch, SIZES.prompt, dtype=torch.int64)
    cache = empty_cache(prefill, tokens, torch.zeros(SIZES.batch, dtype=torch.int64))
    tensors = [each for own in cache.values() for each in own.values()]
    assert sum(each.numel() for each in tensors) == SIZES.batch * per_sequence
    assert all(each.is_meta for each in tensors)  # as the model, it needs no memory


@pytest.fixture(scope="module")
def llama() -> dict[str, ModuleOp]:
    module = imported(model_without_values("llama"), SIZES).module
    return {name: one_entry(module, name) for name in ("prefill", "decode")}


def test_decode_holds_one_cache(llama: dict[str, ModuleOp]) -> None:
    """New tokens are written into the cache: there is never a second one."""
    decode = llama["decode"]
    result = simulate(decode, cluster(1))
    (group,) = MemoryReport.of(result).groups
    assert group.by_kind[CACHES] == 4 * elements(decode, "cache")
    assert group.by_kind[PARAMETERS] == 4 * elements(decode, "parameter")


def test_decode_reads_parameters_and_cache_once(llama: dict[str, ModuleOp]) -> None:
    """
    On a device of free arithmetic, products take the time of the bytes of all matrices, of
    the token that they take and of their result; attention that of keys and values in all
    slots, of a query, a result, and a place of the mask for each slot.
    """
    batch, slots, groups, bandwidth = SIZES.batch, SIZES.cache, 2, 1e9
    projections = [(HIDDEN, HEADS * WIDTH), (HEADS * WIDTH, HIDDEN)]
    projections += [(HIDDEN, groups * WIDTH)] * 2
    mlp = [(HIDDEN, FFN), (HIDDEN, FFN), (FFN, HIDDEN)]
    matrices = [*projections, *mlp] * LAYERS + [(HIDDEN, VOCAB)]
    expected = {
        "onnx.MatMul": sum(k * n + batch * (k + n) for k, n in matrices),
        "onnx.Attention": LAYERS
        * batch
        * (2 * HEADS * WIDTH + 2 * groups * WIDTH * slots + slots),
    }
    found = dict.fromkeys(expected, 0.0)

    def add(execution: Execution) -> None:
        if execution.step.op.name in found:
            found[execution.step.op.name] += np.max(execution.seconds) * bandwidth

    on = cluster(1, peak=1e300, bandwidth=bandwidth)
    simulate(llama["decode"], on).run.observe(add)
    for name, elements_moved in expected.items():
        assert found[name] == pytest.approx(4 * elements_moved, rel=1e-12)


@pytest.mark.parametrize("format", [None, "fp8"])
def test_pages_that_decode_holds_and_reads(format: str | None) -> None:
    """
    A pool of P pages of s tokens takes 2 L kv d P s numbers, and attention reads each of
    them once, where sequences could fill more pages than there are. With more pages, it
    reads those that sequences can fill: their tokens, rounded up to pages. In 8 bits, a
    head's token takes d bytes and a scale.
    """
    row = 4 * WIDTH if format is None else WIDTH + 4
    batch, groups, size, bandwidth = SIZES.batch, 2, 16, 1e9
    columns = 3  # 40 tokens in pages of 16
    for pages, used in ((5, 5), (9, 9), (12, 9)):
        sizes = replace(SIZES, paging=Paging(1, pages, size))
        shapes = {"layers": LAYERS, "d_model": HIDDEN, "heads": HEADS, "vocab": VOCAB}
        module = build_serving(build_llama, sizes, **shapes, kv_heads=groups, ffn=FFN)
        decode = one_entry(module, "decode")
        if format is not None:
            InlineCallsPass().apply(Context(), decode)
            quantize_caches(decode, format)
        tokens = used * size
        read = 4 * batch * (2 * HEADS * WIDTH + columns * size)
        read += 2 * groups * row * tokens
        found = {"seconds": 0.0, "written": 0.0}

        def add(execution: Execution, found: dict[str, float] = found) -> None:
            name = execution.step.op.name
            kinds = {"train.paged_attention": "seconds", "train.paged_write": "written"}
            if name in kinds:
                found[kinds[name]] += np.max(execution.seconds) * bandwidth

        result = simulate(decode, cluster(1, peak=1e300, bandwidth=bandwidth))
        result.run.observe(add)
        (group,) = MemoryReport.of(result).groups
        assert group.by_kind[CACHES] == 2 * LAYERS * groups * row * pages * size
        table = 8 * batch * columns
        assert found["seconds"] == pytest.approx(LAYERS * (read + table), rel=1e-12)
        new = 2 * batch * groups * row
        # The pages of scales have the same table.
        new += (table + 8 * batch) * (1 if format is None else 2)
        assert found["written"] == pytest.approx(2 * LAYERS * new, rel=1e-12)
        weights = 2 * HIDDEN * HEADS * WIDTH + 2 * HIDDEN * groups * WIDTH
        products = LAYERS * (weights + 3 * HIDDEN * FFN) + HIDDEN * VOCAB
        attention = LAYERS * 2 * 2 * HEADS * WIDTH * tokens
        assert sum(result.flops) == 2 * batch * products + attention


@pytest.mark.parametrize(
    ("options", "heads", "positions"),
    [
        ({"c": 2}, 1, 2),
        ({"t": 4, "cache_split": "positions"}, 2, 2),
        ({"t": 2, "c": 4}, 2, 4),
        ({"t": 4}, 1, 1),  # two heads for four devices: all of them have both
    ],
)
def test_caches_split_along_positions(
    options: dict[str, Any], heads: int, positions: int
) -> None:
    """
    Of 2 L B kv N d numbers, a device has those of its heads and positions. Attention
    reads them once, beside queries and mask, and writes results and logarithms.
    """
    groups, batch, slots, bandwidth = 2, SIZES.batch, SIZES.cache, 1e9
    shapes = {"layers": LAYERS, "d_model": HIDDEN, "heads": HEADS, "vocab": VOCAB}
    sizes = replace(SIZES, prompt=8)
    module = build_serving(build_llama, sizes, **shapes, kv_heads=groups, ffn=FFN)
    devices = options.get("t", 1) * options.get("c", 1)
    levels = ((devices, 1e300, 0.0),)
    own = cluster(devices, levels=levels, peak=1e300, bandwidth=bandwidth)
    replace_cluster(module, own)
    distribute(module, DistributionOptions(cluster=own.sym_name.data, **options))
    decode, found = one_entry(module, "decode"), 0.0

    def add(execution: Execution) -> None:
        nonlocal found
        if execution.step.op.name == "train.split_attention":
            found += np.max(execution.seconds) * bandwidth

    result = simulate(decode)
    result.run.observe(add)
    held = batch * groups // heads * slots // positions * WIDTH
    (group,) = MemoryReport.of(result).groups
    assert group.by_kind[CACHES] == 4 * 2 * LAYERS * held
    if positions > 1:
        rows = batch * HEADS // heads
        read = rows * WIDTH + 2 * held + batch * slots // positions
        written = rows * WIDTH + rows
        assert found == pytest.approx(4 * LAYERS * (read + written), rel=1e-12)


def test_flops_of_prefill(llama: dict[str, ModuleOp]) -> None:
    batch, tokens, groups = SIZES.batch, SIZES.prompt, 2
    weights = (
        2 * HIDDEN * HEADS * WIDTH + 2 * HIDDEN * groups * WIDTH + 3 * HIDDEN * FFN
    )
    pairs = 2 * 2 * HEADS * WIDTH * tokens * tokens
    head = 2 * HIDDEN * VOCAB
    expected = batch * (LAYERS * (2 * tokens * weights + pairs) + head)
    result = simulate(llama["prefill"], cluster(1))
    assert sum(result.flops) == expected


@pytest.mark.parametrize(
    ("format", "bytes_of"),
    sampled(
        [
            ("int4", lambda n, k: n * k // 2 + (4 + 1) * n * (k // GROUP)),
            ("int8", lambda n, k: n * k + 4 * n),
            ("fp8", lambda n, k: n * k + 4 * n),
        ],
        3,
    ),
)
def test_bytes_of_quantised_weights(
    format: str, bytes_of: Callable[[int, int], int]
) -> None:
    """
    A row has a scale, a group of 4-bit weights a scale and a zero point in a byte. Memory
    holds these bytes, and products of decode read them once, in place of 4 a weight.
    """
    program, _ = quantized_program(model_without_values("llama"), format, GROUP)
    decode = one_entry(program.module, "decode")
    groups, bandwidth = 2, 1e9
    shapes = [(HEADS * WIDTH, HIDDEN), (HIDDEN, HEADS * WIDTH)]
    shapes += [(groups * WIDTH, HIDDEN)] * 2 + [(FFN, HIDDEN)] * 2 + [(HIDDEN, FFN)]
    weights = LAYERS * sum(bytes_of(n, k) for n, k in shapes)
    others = 2 * VOCAB * HIDDEN + (2 * LAYERS + 1) * HIDDEN
    batch = GENERATION.batch
    moved = LAYERS * sum(4 * batch * (n + k) for n, k in shapes)
    found = 0.0

    def add(execution: Execution) -> None:
        nonlocal found
        if "quantized_linear" in execution.step.op.name:
            found += np.max(execution.seconds) * bandwidth

    result = simulate(decode, cluster(1, peak=1e300, bandwidth=bandwidth))
    result.run.observe(add)
    (group,) = MemoryReport.of(result).groups
    assert group.by_kind[PARAMETERS] == weights + 4 * others
    assert found == pytest.approx(weights + moved, rel=1e-12)
