"""
The options of the functions of `import distir`, with their types. Each function has the
options of a command. `python -m support.typed_options` makes this file from the parsers of
the commands; `test/facade/test_typed_options.py` compares this file with the parsers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Required, TypedDict


class ParallelizeOptions(TypedDict, total=False):
    """The options of `distir distribute`."""

    r: int
    d: int
    e: int
    c: int
    t: int
    p: int
    k: int
    chunks: int
    schedule_file: str | Path
    blocking_sends: bool
    stages: str | Sequence[str]
    shard: str | Sequence[str]
    whole: str | Sequence[str]
    zero: Literal[0, 1, 2, 3]
    no_sync: bool
    sync: bool
    checkpoint: str
    sequence_parallel: bool
    keep_gathered: bool
    sharded_outputs: bool
    token_dispatch: Literal["auto", "gather", "all-to-all"]
    expert_axes: Literal["e", "ec", "et", "ect"]
    context: Literal["gather", "ring"]
    context_order: Literal["contiguous", "cyclic"]
    cache_split: Literal["heads", "positions"]
    buckets: bool
    no_buckets: bool
    overlap: bool | str | Sequence[str]
    entry: str


class DistributeOptions(ParallelizeOptions, total=False):
    """The options of `distir distribute`."""

    cluster: str | Path
    devices: int
    schedule: str
    stage_meshes: str | Sequence[str]
    pad: Literal["heads"] | Sequence[Literal["heads"]]
    offload_states: bool


class ImportOptions(TypedDict, total=False):
    """The options of `distir import`."""

    transformers: str | Path
    task: Literal[
        "causal-lm",
        "masked-lm",
        "seq2seq-lm",
        "sequence-classification",
        "image-classification",
    ]
    batch: int
    seq: int
    target_seq: int
    serve: bool
    cache: int
    prompt: int
    page_size: int
    pages: int
    pools: int
    weights_dtype: Literal["int8", "fp8", "int4"]
    weights_group: int
    cache_dtype: Literal["int8", "fp8"]
    meta: bool
    dim: Mapping[str, int] | str | Sequence[str]
    value: Mapping[str, float] | str | Sequence[str]
    ignore_shardings: bool
    no_outline: bool
    outline: bool
    no_fused_attention: bool
    fused_attention: bool
    capacity_factor: float
    training_mode: bool
    equal_features: bool
    no_check: bool
    check: bool
    allow: (
        Literal["control-flow", "python-random", "custom-backward", "mismatch"]
        | Sequence[
            Literal["control-flow", "python-random", "custom-backward", "mismatch"]
        ]
    )
    dtype: Literal["f32", "f16", "bf16"]
    autocast: Literal["f16", "bf16"]
    float8: Literal["tensor", "row", "row-gw-hp", "mxfp8", "nvfp4"]
    float8_keep: str | Sequence[str]
    training: bool
    loss: Literal["cross_entropy", "mse", "none", "outside"]
    loss_output: int
    ignore_index: int
    optimizer: Literal[
        "adamw", "adam", "sgd", "adafactor", "lamb", "lion", "muon", "none"
    ]
    dropout_masks: Literal["drawn", "stored"]
    gradient_dtype: Literal["parameter", "f32"]
    no_master_weights: bool
    master_weights: bool
    state_dtype: Literal["parameter", "bf16", "int8"]
    batch_norm_devices: int
    batch_norm_micro_batches: int
    loss_scaling: Literal["none", "dynamic"]
    learning_rate: float
    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip: float
    no_relative_step: bool
    relative_step: bool
    muon_scale: Literal["match_rms_adamw", "original"]
    orthogonalize_dtype: Literal["bf16", "parameter"]
    by_adamw: str | Sequence[str]
    dropout_seed: int
    trainable: str | Sequence[str]
    frozen: str | Sequence[str]


class BuildOptions(TypedDict, total=False):
    """The options of `distir build`."""

    size: (
        Literal["124M", "355M", "774M", "1.6B", "13B", "175B"]
        | Literal["1B", "17B", "103B"]
        | Literal["8B", "70B", "405B"]
        | Literal["base", "large", "DNABERT"]
        | Literal["small", "base", "large"]
        | Literal["base", "large", "huge"]
        | Literal["50", "101", "1.3B", "2.6B", "6B", "12B"]
        | Literal["19", "19-million"]
        | Literal["ddpm-cifar10"]
    )
    layers: int
    d_model: int
    heads: int
    vocab: int
    batch: int
    seq: int
    dropout: float
    dropout_seed: int
    decode: int
    no_fused_attention: bool
    fused_attention: bool
    serve: bool
    cache: bool | int | int
    prompt: int
    page_size: int
    pages: int
    pools: int
    weights_dtype: Literal["int8", "fp8", "int4"]
    weights_group: int
    cache_dtype: Literal["int8", "fp8"]
    dtype: Literal["f32", "f16", "bf16"]
    float8: Literal["tensor", "row", "row-gw-hp", "mxfp8", "nvfp4"]
    float8_keep: str | Sequence[str]
    training: bool
    loss: Literal["cross_entropy", "mse", "none", "outside"]
    loss_output: int
    ignore_index: int
    optimizer: Literal[
        "adamw", "adam", "sgd", "adafactor", "lamb", "lion", "muon", "none"
    ]
    dropout_masks: Literal["drawn", "stored"]
    gradient_dtype: Literal["parameter", "f32"]
    no_master_weights: bool
    master_weights: bool
    state_dtype: Literal["parameter", "bf16", "int8"]
    batch_norm_devices: int
    batch_norm_micro_batches: int
    loss_scaling: Literal["none", "dynamic"]
    learning_rate: float
    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip: float
    no_relative_step: bool
    relative_step: bool
    muon_scale: Literal["match_rms_adamw", "original"]
    orthogonalize_dtype: Literal["bf16", "parameter"]
    by_adamw: str | Sequence[str]
    experts: int
    ffn: int
    capacity_factor: float
    kv_heads: int
    theta: float
    tied: bool
    head_dim: int
    top_k: int
    target_seq: int
    classes: int
    image: int
    patch: int
    channels: int
    width_factor: int
    width: int
    blocks: int
    attention_at: int
    groups: int


class SchedulingOptions(TypedDict, total=False):
    """The options of `distir schedule`."""

    verify: bool
    kernels: str | Path | Sequence[str | Path]
    timeout: float
    tune: str | Sequence[str | int]
    resume: str | Path
    seed: int
    backend: Literal["gloo", "nccl"]
    jobs: int
    cluster: str | Path
    devices: int
    profile: str | Path | Sequence[str | Path]
    expert_imbalance: float
    world_size: int
    degrees: Sequence[tuple[int, int, int]]
    micro_batches: int | Sequence[int]
    zero: int | Sequence[int]
    checkpoint: str | Sequence[str]
    schedules: str | Sequence[str]
    c: int | Sequence[int]
    e: int | Sequence[int]
    expert_axes: str | Sequence[str]
    cache_split: str | Sequence[str]
    r: int | Sequence[int]
    no_sync: str | Sequence[str]
    offload_states: str | Sequence[str]
    overlap: str | Sequence[str]
    buckets: bool
    no_buckets: bool
    training: bool
    loss: Literal["cross_entropy", "mse", "none", "outside"]
    loss_output: int
    ignore_index: int
    optimizer: Literal[
        "adamw", "adam", "sgd", "adafactor", "lamb", "lion", "muon", "none"
    ]
    dropout_masks: Literal["drawn", "stored"]
    gradient_dtype: Literal["parameter", "f32"]
    no_master_weights: bool
    master_weights: bool
    state_dtype: Literal["parameter", "bf16", "int8"]
    batch_norm_devices: int
    batch_norm_micro_batches: int
    loss_scaling: Literal["none", "dynamic"]
    learning_rate: float
    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip: float
    no_relative_step: bool
    relative_step: bool
    muon_scale: Literal["match_rms_adamw", "original"]
    orthogonalize_dtype: Literal["bf16", "parameter"]
    by_adamw: str | Sequence[str]


class SearchingOptions(TypedDict, total=False):
    """The options of `distir search`."""

    entry: str
    cluster: Required[str | Path]
    devices: int
    profile: str | Path | Sequence[str | Path]
    expert_imbalance: float
    world_size: int
    degrees: Sequence[tuple[int, int, int]]
    micro_batches: int | Sequence[int]
    zero: int | Sequence[int]
    checkpoint: str | Sequence[str]
    schedules: str | Sequence[str]
    c: int | Sequence[int]
    e: int | Sequence[int]
    expert_axes: str | Sequence[str]
    cache_split: str | Sequence[str]
    r: int | Sequence[int]
    no_sync: str | Sequence[str]
    offload_states: str | Sequence[str]
    overlap: str | Sequence[str]
    buckets: bool
    no_buckets: bool
    auto: bool
    time_limit: float
    shard: str | Sequence[str]
    whole: str | Sequence[str]
    measure: int
    backend: Literal["gloo", "nccl"]
    jobs: int
    resume: str | Path


class ServePlanOptions(TypedDict, total=False):
    """The options of `distir serve-plan`."""

    cluster: Required[str | Path]
    devices: int
    prompt: int
    generate: int
    trace: str | Path
    rate: str | float
    ttft: str | float
    tpot: str | float
    percentile: Literal[50, 90, 99]
    placement: Literal["both", "aggregated", "disaggregated"]
    prefix_hits: str | float
    max_sequences: int
    batched_tokens: int | Sequence[int]
    memory_share: str | float
    admission: Literal["preempt", "reserve"]
    requests: int
    seed: int
    weights_dtype: Literal["int8", "fp8", "int4"]
    cache_dtype: Literal["int8", "fp8"]
    expert_imbalance: float
    profile: str | Path | Sequence[str | Path]


class ShowOptions(DistributeOptions, total=False):
    """The options of `distir show`."""

    scope: str
    entry: str
    profile: str | Path | Sequence[str | Path]
    expert_imbalance: float
    r: int
    d: int
    e: int
    c: int
    t: int
    p: int
    k: int
    chunks: int
    schedule_file: str | Path
    blocking_sends: bool
    stages: str | Sequence[str]
    shard: str | Sequence[str]
    whole: str | Sequence[str]
    zero: Literal[0, 1, 2, 3]
    no_sync: bool
    sync: bool
    checkpoint: str
    sequence_parallel: bool
    keep_gathered: bool
    sharded_outputs: bool
    token_dispatch: Literal["auto", "gather", "all-to-all"]
    expert_axes: Literal["e", "ec", "et", "ect"]
    context: Literal["gather", "ring"]
    context_order: Literal["contiguous", "cyclic"]
    cache_split: Literal["heads", "positions"]
    buckets: bool
    no_buckets: bool
    overlap: bool | str | Sequence[str]


class SimulateOptions(DistributeOptions, total=False):
    """The options of `distir simulate`."""

    flat: bool
    entry: str
    profile: str | Path | Sequence[str | Path]
    expert_imbalance: float
    r: int
    d: int
    e: int
    c: int
    t: int
    p: int
    k: int
    chunks: int
    schedule_file: str | Path
    blocking_sends: bool
    stages: str | Sequence[str]
    shard: str | Sequence[str]
    whole: str | Sequence[str]
    zero: Literal[0, 1, 2, 3]
    no_sync: bool
    sync: bool
    checkpoint: str
    sequence_parallel: bool
    keep_gathered: bool
    sharded_outputs: bool
    token_dispatch: Literal["auto", "gather", "all-to-all"]
    expert_axes: Literal["e", "ec", "et", "ect"]
    context: Literal["gather", "ring"]
    context_order: Literal["contiguous", "cyclic"]
    cache_split: Literal["heads", "positions"]
    buckets: bool
    no_buckets: bool
    overlap: bool | str | Sequence[str]


class LowerOptions(TypedDict, total=False):
    """The options of `distir lower`."""

    evaluation: bool
    compile: bool
    check_memory: bool
    kernels: str | Path | Sequence[str | Path]


class CheckOptions(TypedDict, total=False):
    """The options of `distir check`."""

    seed: int
    tolerance: float


class RunOptions(TypedDict, total=False):
    """The options of `distir run`."""

    backend: Required[Literal["gloo", "nccl"]]
    seed: int
    outputs: str | Path
    timeout: float
    compile: bool
    kernels: str | Path | Sequence[str | Path]
    steps: int
    weights: str | Path | Sequence[str | Path]
    checkpoint_dir: str | Path
    save_every: int
    resume: bool | str
    data: str | Path | Sequence[str | Path]
    data_workers: int
    eval_every: int
    eval_data: str | Path | Sequence[str | Path]
    log_file: str | Path
    tensorboard: str | Path
    warmup: int
    decay: Literal["cosine", "linear", "none"]
    min_lr: float
    decay_until: int


class ClusterOptions(TypedDict, total=False):
    """The options of `distir cluster`."""

    nodes: int
    devices_per_node: int
    nic: str | float
    nics_per_node: int
    nic_kind: str
    link: str | float
    memory: str | int
    name: str


class ExportOptions(TypedDict, total=False):
    """The options of `distir export`."""

    to: Literal[
        "safetensors",
        "dtensor",
        "sdy",
        "megatron",
        "megatron-bridge",
        "nemo",
        "deepspeed",
        "torchtitan",
        "nanotron",
        "accelerate",
        "vllm",
        "sglang",
        "tensorrt-llm",
    ]
    config: str | Path
    program: str | Path


class CalibrateOptions(TypedDict, total=False):
    """The options of `distir calibrate`."""

    backend: Literal["gloo", "nccl"]
    devices: int
    dtype: Literal["f32", "f16", "bf16"]
    rounds: int
    tolerance: float
    program: str | Path
    kernels: str | Path | Sequence[str | Path]
