"""Plans of services: step times from programs, and the search over replicas."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from support.generation import imported, tiny_model
from support.thoroughness import IS_THOROUGH, sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.base import CollectiveOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_moe
from distir.frontends.models.generation import build_serving
from distir.frontends.models.latent_attention import LatentSizes
from distir.frontends.models.llama import build_llama
from distir.frontends.models.serving_step import DecoderSizes, build_serving_step
from distir.frontends.models.step_builder import StepFormats
from distir.frontends.serving import Paging, ServingSizes
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.inline_calls import InlineCallsPass
from distir.passes.verify_distribution import VerifyDistributionPass
from distir.planning.serving import step_simulator
from distir.planning.serving.model_sizes import served_model
from distir.planning.serving.options import ServiceOptions
from distir.planning.serving.plans import (
    LatencyLimits,
    ReplicaPool,
    ReplicaShape,
    ServicePlan,
    fewest_devices,
    latency_front,
)
from distir.planning.serving.search import ServiceResult, ServiceSearch
from distir.planning.serving.step_simulator import BuiltSteps, Layers, StepSimulator
from distir.program import Program, scope_of
from distir.program.entries import joined, one_entry
from distir.serving.replica import ReplicaLimits
from distir.serving.requests import poisson_workload
from distir.serving.step_times import StepTable
from distir.transforms.precision.cache_quantization import quantize_caches
from distir.transforms.precision.weight_quantization import quantize_weights

LIMITS = ReplicaLimits(100_000, 64, 512)
SMALL = DecoderSizes(6, 1024, 8, 4, 128, 2816, 32000, "bf16")
MIXED = replace(
    SMALL, expert_layers=4, experts=8, choices=2, expert_ffn=512, shared_ffn=256
)


def steps(sizes: DecoderSizes, t: int = 1, e: int = 1) -> StepSimulator:
    cluster = load_cluster("dgx-h100", 8)
    return StepSimulator(
        BuiltSteps(sizes), cluster, ("H100-serving",), t, e, 2048, 64, 512
    )


def test_sizes_are_read_from_programs() -> None:
    gpt = served_model(build_gpt(3, 64, 4, 100, 2, 16), "gpt")
    assert (gpt.sizes.ffn, gpt.sizes.gated, gpt.sizes.tied) == (256, False, True)
    assert (gpt.most_tokens, gpt.limit) == (16, "its table of positions")
    with pytest.raises(
        DistIRError, match=r"17 tokens, .* its table of positions has 16"
    ):
        gpt.check(17)
    llama = served_model(build_llama(3, 64, 4, 100, 2, 16, "bf16", kv_heads=2), "llama")
    assert llama.sizes == DecoderSizes(3, 64, 4, 2, 16, 256, 100, "bf16")
    assert llama.most_tokens is None
    moe = served_model(build_moe(4, 64, 4, 8, 100, 2, 16), "moe").sizes
    assert (moe.layers, moe.expert_layers, moe.experts, moe.choices) == (4, 2, 8, 2)
    assert moe.expert_ffn == 256


def test_sizes_are_read_from_the_program_of_a_step() -> None:
    for sizes in (SMALL, MIXED):
        assert served_model(build_serving_step(sizes, 2, 1, 16), "step").sizes == sizes


def test_sizes_do_not_depend_on_functions() -> None:
    """Layers in functions, or all in one; a function may also hold parts of two layers."""
    for module in (
        *(build_gpt(3, 64, 4, 100, 2, 16), build_moe(4, 64, 4, 8, 100, 2, 16)),
        *(build_llama(3, 64, 4, 100, 2, 16), build_serving_step(MIXED, 2, 1, 16)),
    ):
        plain = served_model(module, "model").sizes
        InlineCallsPass().apply(Context(), module)
        assert served_model(module, "model").sizes == plain


def test_a_program_without_attention_is_refused() -> None:
    module = build_gpt(1, 64, 4, 100, 2, 16, fused_attention=False)
    with pytest.raises(DistIRError, match="no op of attention"):
        served_model(module, "gpt")


def test_the_parameters_of_published_models_are_counted() -> None:
    llama = DecoderSizes(80, 8192, 64, 8, 128, 28672, 128256, "bf16")
    assert llama.parameters / 1e9 == pytest.approx(70.55, abs=0.01)
    assert llama.cached_elements * 2 == 327_680


def test_a_step_of_a_mixture_verifies_when_distributed() -> None:
    from distir.passes.distribute import DistributePass
    from distir.planning.plans.programs import replace_cluster

    for new, cached in ((1, 64), (32, 0)):
        module = build_serving_step(MIXED, 4, new, cached, layers=(1, 1))
        replace_cluster(module, load_cluster("dgx-h100", 8))
        DistributePass(t=2, e=4).apply(Context(), module)
        VerifyDistributionPass().apply(Context(), module)
        assert simulate(module).step_time_s > 0


@pytest.mark.parametrize("sizes", sampled([MIXED, SMALL], 2), ids=["mixed", "small"])
def test_one_and_two_layers_tell_the_times_of_all(sizes: DecoderSizes) -> None:
    own = steps(sizes, 2)
    layers = Layers(sizes.layers - sizes.expert_layers, sizes.expert_layers)
    real = own.simulated(16, 1, 2048, layers).seconds
    found = own.table(1).step(16, 16 * 2048, 0, 0).latency_s
    assert found == pytest.approx(real, rel=0.01)


def test_a_pipeline_is_as_long_and_its_stages_are_shorter() -> None:
    own = steps(SMALL)
    whole, staged = (own.table(p).step(16, 16 * 500, 0, 0) for p in (1, 2))
    assert staged.latency_s > whole.latency_s
    assert staged.busy_s < 0.75 * whole.latency_s


def test_memory_counts_parameters_and_caches() -> None:
    memory = steps(SMALL, 2).memory(1)
    assert memory.parameters >= SMALL.parameters  # 2 bytes each on 2 devices
    assert memory.token == SMALL.cached_elements  # 2 bytes each on 2 devices
    free = memory.device - memory.parameters - memory.activations
    assert memory.cache_tokens(0.5) == int(0.5 * free / memory.token)


DEEPSEEK = DecoderSizes(
    *(61, 7168, 128, 128, 128, 18432, 129_280, "bf16", True, False),
    *(58, 256, 8, 2048, 2048),
    latent=LatentSizes(rank=512, rotary=64, inner=128, query_rank=1536),
)


def test_the_parameters_and_latents_of_deepseek_are_counted() -> None:
    """DeepSeek-V3 has 671 billion parameters, and 576 numbers a token and layer."""
    assert DEEPSEEK.parameters / 1e9 == pytest.approx(671.03, abs=0.01)
    assert DEEPSEEK.cached_elements == 61 * (512 + 64)


@pytest.mark.parametrize("t", [1, 2])
def test_every_device_has_all_latents(t: int) -> None:
    small = replace(
        SMALL, kv_heads=8, head_width=64, latent=LatentSizes(128, 32, 64, 256)
    )
    assert steps(small, t).memory(1).token == 2 * 6 * (128 + 32)
    # All heads read the same latents: a longer context costs a few times its bytes.
    own = steps(small, t).table(1)
    short, long = (own.step(64, 64 * n, 0, 0).latency_s for n in (64, 2048))
    read = 64 * (2048 - 64) * 2 * 6 * (128 + 32) / 3.35e12
    assert read < long - short < 4 * read


def test_attention_with_a_window_takes_no_longer_beyond_it() -> None:
    windowed = replace(SMALL, window=512, window_layers=4)
    plain, own = (steps(sizes).table(1) for sizes in (SMALL, windowed))

    def more(table: StepTable, first: int, second: int) -> float:
        latencies = [table.step(64, 64 * n, 0, 0).latency_s for n in (first, second)]
        return latencies[1] - latencies[0]

    assert more(own, 64, 512) == pytest.approx(more(plain, 64, 512), rel=0.05)
    found, every = more(own, 512, 2048), more(plain, 512, 2048)
    assert found == pytest.approx(every * 2 / 6, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mistral", "deepseek_v3", "gemma3"])
def test_latents_and_windows_are_read_from_inference_programs(kind: str) -> None:
    model = tiny_model(kind)
    module = imported(model, check=False).module
    sizes = served_model(module, kind).sizes
    matrices = [p.numel() for p in model.parameters() if p.ndim > 1]
    assert sizes.parameters == sum(matrices)
    caches = [
        a.type.get_shape()  # type: ignore[attr-defined]
        for a in Program(one_entry(module, "decode")).arguments
        if a.role == "cache"
    ]
    assert sizes.cached_elements == sum(shape[1] * shape[3] for shape in caches)
    latent = LatentSizes(rank=8, rotary=4, inner=8, query_rank=16)
    assert sizes.latent == (latent if kind == "deepseek_v3" else None)
    windows = (0, 0) if kind == "deepseek_v3" else (6, 2)
    assert (sizes.window, sizes.window_layers) == windows


@cache
def found(placement: str = "both") -> ServiceResult:
    options = ServiceOptions(
        placement=placement, requests=100, max_sequences=64, batched_tokens=(512,)
    )
    search = ServiceSearch(
        *(BuiltSteps(SMALL), load_cluster("dgx-h100", 8), ("H100-serving",), 2),
        partial(poisson_workload, prompt=500, generate=50),
        *(100.0, LatencyLimits(0.2, 0.01, 90), options),
    )
    return search.run()


def test_the_best_plan_keeps_the_limits() -> None:
    result = found("aggregated")
    best = result.best
    assert best is not None and best.plan.devices <= 2
    assert best.ttft_s <= 0.2 and best.tpot_s <= 0.01
    assert best.tokens_per_s == pytest.approx(50 * best.rate)
    assert result.error < 0.2
    assert result.needed is not None and result.at_rate is not None


def test_fewer_devices_are_needed_for_a_lower_rate() -> None:
    result = found("aggregated")
    assert result.best is not None and result.needed is not None
    sustained = result.best.rate / result.best.plan.devices
    assert result.needed.devices >= 100 / (1.6 * sustained)


def test_of_as_many_devices_those_that_sustain_more_are_needed() -> None:
    pools = [
        ServicePlan(ReplicaPool(ReplicaShape(t, p, 1), n, LIMITS, 0.5, 0.1))
        for t, p, n in ((1, 2, 1), (1, 1, 2), (1, 1, 3))
    ]
    ordered = sorted(zip(pools, (13.0, 19.0, 30.0), strict=True), key=fewest_devices)
    assert [str(plan) for plan, _ in ordered] == [
        *("t=1 d=2, aggregated", "p=2 d=1, aggregated", "t=1 d=3, aggregated")
    ]


def test_the_front_is_not_dominated() -> None:
    result = found("both" if IS_THOROUGH else "aggregated")
    front = latency_front(result.points, inf)
    for first, second in pairwise(front):
        assert first.tpot_s <= second.tpot_s
        assert first.tokens_per_s_and_device < second.tokens_per_s_and_device


def test_disaggregated_plans_have_two_pools() -> None:
    result = found("disaggregated")
    assert result.best is None or result.best.plan.is_disaggregated
    assert result.best is not None


def test_requests_that_fit_nowhere_are_refused_with_the_reason() -> None:
    options = ServiceOptions(batched_tokens=(512,))
    huge = replace(SMALL, layers=500, d_model=16384, ffn=65536)
    search = ServiceSearch(
        *(BuiltSteps(huge), load_cluster("dgx-h100", 8), ("H100-serving",), 8),
        partial(poisson_workload, prompt=500, generate=50),
        *(None, LatencyLimits(inf, inf, 99), options),
    )
    with pytest.raises(DistIRError, match="no replica on up to 8 devices"):
        search.run()


def test_what_is_missing_is_said_before_steps_are_built() -> None:
    """405 billion parameters in 16 bits take 811.7 GB: 8 devices of 80 GB lack 171.7."""
    sizes = DecoderSizes(126, 16384, 128, 8, 128, 53248, 128256, "bf16")
    options = ServiceOptions(batched_tokens=(512,))
    search = ServiceSearch(
        *(BuiltSteps(sizes), load_cluster("dgx-h100", 8), ("H100-serving",), 8),
        partial(poisson_workload, prompt=2000, generate=300),
        *(None, LatencyLimits(inf, inf, 99), options),
    )
    with pytest.raises(DistIRError) as found:
        search.run()
    assert search.simulator(1, 1).simulations == 0
    message = str(found.value)
    assert re.search(
        r"parameters take 101\.\d GB of a device, which has 80 GB", message
    )
    assert "172.9 GB are missing in all; give at least 16 --devices" in message
    assert "--weights-dtype fp8 --cache-dtype fp8" in message


FORMATS = [("int8", 1.0), ("fp8", 1.0), ("int4", 0.5)]


@pytest.mark.parametrize(("kind", "width"), sampled(FORMATS, 3))
def test_weights_of_fewer_bits_take_as_many_bytes(kind: str, width: float) -> None:
    """
    A device holds its parts of the matrices, with a scale for each row or group, the
    tables whole, and norms.
    """
    plain, narrow = (
        steps(replace(SMALL, formats=StepFormats(weights))).memory(1).parameters
        for weights in (None, kind)
    )
    tables = 2 * SMALL.vocab * SMALL.d_model
    matrices = SMALL.parameters - tables
    rows = SMALL.layers * (2 * 1024 + 2 * 512 + 2 * 2816 + 1024)
    scales = 2 * rows if kind != "int4" else 3 * matrices // 128
    assert plain - narrow == (2 - width) * matrices - scales


@pytest.mark.parametrize("kind", sampled(["int4", "fp8"], 2))
def test_experts_of_fewer_bits_take_as_many_bytes(kind: str) -> None:
    formats = StepFormats(kind)
    plain, narrow = (
        steps(replace(MIXED, formats=own)).memory(1).parameters
        for own in (StepFormats(), formats)
    )
    tables = 2 * MIXED.vocab * MIXED.d_model
    matrices = MIXED.parameters - tables
    attention = 6 * (2 * 1024 + 2 * 512)
    mlps = 2 * (2 * 2816 + 1024) + 4 * (2 * 256 + 1024)
    experts = 4 * 8 * (2 * 512 + 1024)
    rows = attention + mlps + experts + 4 * 8  # gates choose among 8 experts
    if kind == "fp8":
        assert plain - narrow == matrices - 2 * rows
    else:  # a scale and a zero point for each group of 128
        assert plain - narrow == 3 * matrices // 2 - 3 * matrices // 128


@pytest.mark.parametrize(("kind", "t"), [("int8", 1), ("fp8", 2)])
def test_caches_of_8_bits_take_as_many_bytes(kind: str, t: int) -> None:
    """A byte for each number, and a scale of 2 for each token, head, key and value."""
    sizes = replace(SMALL, formats=StepFormats(cache=kind))
    memory = steps(sizes, t).memory(1)
    assert memory.token * t == SMALL.cached_elements + 2 * 2 * SMALL.layers * 4
    assert memory.token * t == sizes.cached_bytes


def test_latents_of_8_bits_take_as_many_bytes() -> None:
    latent = LatentSizes(128, 32, 64, 256)
    sizes = replace(
        *(SMALL,), kv_heads=8, latent=latent, formats=StepFormats(cache="fp8")
    )
    assert steps(sizes, 2).memory(1).token == 6 * (128 + 32 + 2 * 2)


def test_attention_reads_the_bytes_of_8_bits() -> None:
    """Longer contexts take half the time, and the scales; weights as many bytes less."""
    times = [
        [steps(own).simulated(64, 1, n, Layers(1, 0)).seconds for n in (1024, 2048)]
        for own in (SMALL, replace(SMALL, formats=StepFormats(cache="fp8")))
    ]
    plain, narrow = (after - before for before, after in times)
    assert narrow == pytest.approx(plain * (128 + 2) / (2 * 128), rel=1e-3)


def test_pages_are_read_from_inference_programs() -> None:
    model = {"layers": 2, "d_model": 256, "heads": 4, "vocab": 96, "kv_heads": 2}
    paged, plain = (
        build_serving(build_llama, ServingSizes(4, 40, 8, paging), **model)
        for paging in (Paging(2, 4, 16), None)
    )
    own, other = served_model(paged, "paged"), served_model(plain, "plain")
    assert own.sizes == replace(other.sizes, page=16)
    assert (own.most_tokens, other.most_tokens) == (40, 40)
    short = build_serving(build_llama, ServingSizes(4, 40, 8, Paging(1, 4, 8)), **model)
    with pytest.raises(DistIRError, match=r"33 tokens, .* its pool of pages has 32"):
        served_model(short, "short").check(33)


def test_formats_are_read_from_inference_programs() -> None:
    for sizes in (SMALL, MIXED):
        own = replace(sizes, formats=StepFormats("fp8", "int8"))
        assert served_model(
            build_serving_step(own, 2, 1, 16), "step"
        ).sizes.formats == (StepFormats("fp8"))
    program = build_serving(
        build_llama, ServingSizes(2, 16, 8), layers=2, d_model=256, heads=4, vocab=96
    )
    assert served_model(program, "llama").sizes.formats == StepFormats()
    entry = one_entry(program, "decode")
    InlineCallsPass().apply(Context(), entry)
    quantize_weights(entry, "int4", 64)
    quantize_caches(entry, "fp8")
    found = served_model(joined({"decode": entry}), "llama").sizes
    assert found.formats == StepFormats("int4", "fp8", 64)
    assert (found.layers, found.ffn, found.kv_heads) == (2, 768, 4)


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_sizes_of_experts_are_read_from_quantised_programs(kind: str) -> None:
    sizes = ServingSizes(4, 16, 8, Paging(1, 8, 8))
    model = {"layers": 2, "d_model": 256, "heads": 4, "vocab": 96, "experts": 4}
    program = build_serving(build_moe, sizes, **model)
    plain = served_model(program, "moe").sizes
    entry = one_entry(program, "decode")
    InlineCallsPass().apply(Context(), entry)
    quantize_weights(entry, kind, 64)
    quantize_caches(entry, "fp8")
    group = 64 if kind == "int4" else StepFormats().group
    expected = replace(plain, formats=StepFormats(kind, "fp8", group))
    assert served_model(joined({"decode": entry}), "moe").sizes == expected


@pytest.mark.parametrize(("new", "cached"), [(1, 64), (32, 0)])
def test_devices_of_experts_keep_their_sequences(
    new: int, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens go to experts and back; attention and other products exchange nothing."""
    scopes = set[str]()

    def spied(module: ModuleOp, **options: Any) -> Any:
        scopes.update(
            scope_of(op) for op in module.walk() if isinstance(op, CollectiveOp)
        )
        return simulate(module, **options)

    monkeypatch.setattr(step_simulator, "simulate", spied)
    steps(MIXED, 1, 4).simulated(4, new, cached, Layers(1, 1))
    assert scopes and all("mlp.experts" in scope for scope in scopes)
