"""Megatron-LM: the arguments of its script `pretrain_gpt`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from distir.errors import DistIRError
from distir.exports.systems import megatron_rules as rules
from distir.exports.systems.launcher import launch_of, sbatch_devices
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.shell import Script, Word
from distir.exports.systems.system import Document, System
from distir.exports.systems.table import OptionRule, OptionTable, Row

SOURCE = (
    "Megatron-LM at d98e8a64 (August 2026): megatron/training/arguments.py, and the fields of "
    "its configuration classes, from which it makes options; names of options of older versions"
)

ROWS = (
    Row("t", "tensor-model-parallel-size", 1, aliases=("model-parallel-size",), always=True),
    Row("p", "pipeline-model-parallel-size", 1, always=True),
    Row("c", "context-parallel-size", 1),
    Row("r", "num-distributed-optimizer-instances", 1),
    Row("sequence_parallel", "sequence-parallel", False),
    Row(
        "context", "cp-comm-type", "ring",
        {"p2p": "ring", "all_gather": "gather", "allgather": "gather"},
    ),
    Row("layers", "num-layers", aliases=("encoder-num-layers",), always=True),
    Row("d_model", "hidden-size", always=True),
    Row("ffn", "ffn-hidden-size", 0),
    Row("heads", "num-attention-heads", always=True),
    Row("head_dim", "kv-channels", 0),
    Row("seq", "seq-length", aliases=("encoder-seq-length",), always=True),
    Row("positions", "max-position-embeddings", 0, always=True),
    Row("mlp", "swiglu", "gelu", {True: "swiglu", False: "gelu"}),
    Row("norm", "normalization", "layer", {"LayerNorm": "layer", "RMSNorm": "rms"}),
    Row(
        "position", "position-embedding-type", "learned",
        {"learned_absolute": "learned", "rope": "rotary"},
    ),
    Row("theta", "rotary-base", 10000.0),
    Row(
        "tied", "untie-embeddings-and-output-weights", True, {True: False, False: True}
    ),
    Row("bias", "disable-bias-linear", True, {True: False, False: True}),
    Row("qkv_bias", "add-qkv-bias", False),
    Row("dropout", "hidden-dropout", 0.1),
    Row("attention_dropout", "attention-dropout", 0.1),
    Row("experts", "num-experts", 0),
    Row("top_k", "moe-router-topk", 2),
    Row("expert_ffn", "moe-ffn-hidden-size", 0),
    Row("offload_states", "optimizer-cpu-offload", False),
    Row("micro_batch", "micro-batch-size", aliases=("batch-size",), always=True),
    Row("batch", "global-batch-size", 0, always=True),
)  # fmt: skip

RULES = (
    OptionRule(
        {"vocab-size": None, "padded-vocab-size": None, "tokenizer-type": None},
        ("vocab",), rules.read_vocabulary, rules.write_vocabulary,
    ),
    OptionRule(
        {"bf16": None, "fp16": None, "accumulate-allreduce-grads-in-fp32": None,
         "grad-reduce-in-bf16": None},
        ("dtype", "gradients_f32"), rules.read_dtype, rules.write_dtype,
    ),
    OptionRule(
        {"group-query-attention": None, "num-query-groups": 1},
        ("kv_heads",), rules.read_heads, rules.write_heads,
    ),
    OptionRule(
        {"use-distributed-optimizer": None, "use-megatron-fsdp": None,
         "use-custom-fsdp": None, "use-torch-fsdp2": None,
         "data-parallel-sharding-strategy": "no_shard",
         "no-gradient-accumulation-fusion": None},
        ("zero",), rules.read_zero, rules.write_zero,
    ),
    OptionRule(
        {"overlap-grad-reduce": None, "overlap-param-gather": None,
         "tp-comm-overlap": None},
        ("overlap",), rules.read_overlap, rules.write_overlap,
    ),
    OptionRule(
        {"num-layers-per-virtual-pipeline-stage": None,
         "num-virtual-stages-per-pipeline-rank": None},
        ("schedule", "chunks"), rules.read_pipeline, rules.write_pipeline,
    ),
    OptionRule(rules.RECOMPUTE, ("checkpoint",), rules.read_recompute, rules.write_recompute),
    OptionRule(
        {"expert-model-parallel-size": 1, "expert-tensor-parallel-size": None,
         "moe-layer-freq": "1"},
        ("e", "expert_axes"), rules.read_experts, rules.write_experts,
    ),
    OptionRule(
        {"fp8-format": None, "fp8-recipe": "delayed", "fp8-hybrid": None,
         "fp4-format": None, "fp4-recipe": "nvfp4"},
        ("float8",), rules.read_float8, rules.write_float8,
    ),
)  # fmt: skip

HARMLESS = (
    *(
        "lr",
        "lr-*",
        "min-lr",
        "train-*",
        "weight-decay*",
        "adam-*",
        "sgd-*",
        "optimizer",
    ),
    *("start-weight-decay", "end-weight-decay", "override-opt*", "use-checkpoint-*"),
    *("init-method-*", "clip-grad", "*loss-scale*", "hysteresis", "seed", "data-*"),
    *("vocab-*", "merge-file", "tokenizer-*", "split", "mock-data", "num-workers"),
    *(
        "*-data-path",
        "dataloader-type",
        "no-create-attention-mask*",
        "reset-*",
        "eod-*",
    ),
    *("log-*", "*-interval", "eval-*", "save*", "load*", "no-load-*", "no-save-*"),
    *("tensorboard-*", "wandb-*", "ckpt-*", "dist-ckpt-*", "async-save", "finetune"),
    *("exit-*", "distributed-*", "timing-*", "profile*", "use-pytorch-profiler"),
    *("use-mcore-models", "transformer-impl", "attention-backend", "use-flash-attn*"),
    *("no-masked-softmax-fusion", "no-bias-*-fusion", "no-rope-fusion", "*-fusion"),
    *("no-persist-layer-norm", "attention-softmax-in-fp32", "norm-epsilon"),
    *("layernorm-epsilon", "apply-layernorm-1p", "no-position-embedding"),
    *("use-rotary-position-embeddings", "rotary-*", "use-rope-scaling", "rope-*"),
    *(
        "no-query-key-layer-scaling",
        "apply-query-key-layer-scaling",
        "rampup-batch-size",
    ),
    *("moe-router-*", "moe-aux-*", "moe-z-*", "moe-token-dispatcher-type"),
    *("moe-grouped-gemm", "moe-permute-fusion", "moe-per-layer-logging", "manual-gc*"),
    *("make-vocab-size-divisible-by", "recompute-*-logging", "fp16-lm-cross-entropy"),
    *("no-async-tensor-model-parallel-allreduce", "cross-entropy-fusion-*", "nccl-*"),
    *(
        "use-tp-pp-dp-mapping",
        "local-rank",
        "DDP-impl",
        *("fp8-*", "fp4-*"),
        "check-*",
        "no-check-*",
    ),
    *("calculate-per-token-loss", "no-barrier-*", "enable-*-logger", "one-logger-*"),
    *(
        "no-one-logger",
        "te-rng-tracker",
        "deterministic-mode",
        "use-cpu-initialization",
    ),
    *("distribute-saved-activations", "no-overlap-p2p-communication", "onnx-safe"),
    *("no-contiguous-buffers-in-local-ddp", "empty-unused-memory-level", "ddp-*"),
    *(
        "decoder-seq-length",
        "query-in-block-prob",
        "qk-layernorm",
        "deepspeed*",
        "moe-*-logging",
    ),
    *("decoupled-*", "tiktoken-*", "no-mmap-*", "use-legacy-models", "initial-*"),
    *("use-distributed-checkpointing", "auto-detect-*", "no-bias-*", "tokenizer"),
    *("cache-*", "padded-*", "legacy-*", "num-dataset-*", "apply-residual-*", "dist*"),
    *(
        "bert-*",
        "experiment-*",
        "straggler-*",
        "log_*",
        "cuda-graph-*",
        "disable-gloo-*",
    ),
)
"""
Patterns of options that change neither time nor memory, or that only choose a kernel:
kernel times come from the device's profile.
"""

REFUSED = {
    "multi-latent-attention": "DistIR builds no multi-latent attention",
    "moe-shared-expert-intermediate-size": "DistIR builds no shared experts",
    "moe-expert-capacity-factor": "DistIR drops no token of these experts",
    "mtp-num-layers": "DistIR builds no prediction of several tokens",
    "pipeline-model-parallel-layout": "DistIR's pipelines have equal stages here",
    "decoder-first-pipeline-num-layers": "DistIR's pipelines have equal stages here",
    "decoder-last-pipeline-num-layers": "DistIR's pipelines have equal stages here",
    "account-for-*-in-pipeline-split": "DistIR's pipelines have equal stages here",
    "cpu-offloading": "DistIR does not offload these layers",
    "window-size": "DistIR builds no sliding windows",
    "squared-relu": "DistIR builds MLPs with GELU or SwiGLU",
    "is-hybrid-model": "DistIR builds no state space layers",
    "hybrid-*": "DistIR builds no state space layers",
    "zero-stage": "this is DeepSpeed's; use --from deepspeed",
}
"""
Options that change time or memory in a way that DistIR cannot predict, with the reason.
"""


class Megatron(System):
    """
    Megatron-LM. Its options are in a script that starts it with torchrun or another
    launcher.
    """

    name: ClassVar[str] = "megatron"
    table: ClassVar[OptionTable] = OptionTable(ROWS, RULES, HARMLESS, REFUSED, SOURCE)

    def option(self, name: str) -> str:
        return f"--{name}"

    def vocabulary(self, settings: RunSettings) -> int:
        return rules.padded_vocabulary(settings)

    def parse(self, text: str, path: str, given: Mapping[str, str]) -> Document:
        script = Script(text, path, given)
        words = self._command(script, path)
        launch = launch_of(words, path)
        found = Document(path, {}, notes=list(script.notes))
        found.launch = {"script": launch.script} if launch.script else {}
        per_node, nodes = sbatch_devices(text)
        found.per_node = launch.per_node or per_node
        found.devices = found.per_node * (launch.nodes or nodes or 1)
        for name, value in _flags(launch.words, path).items():
            found.values[name] = value[0]
            found.where[name] = f"{path}, line {value[1]}: --{name}"
            if (
                isinstance(value[0], str)
                and value[0].startswith("$")
                and (name in self.table.named() or name in self.table.of_rules())
            ):
                variable = value[0].strip("${}")
                raise DistIRError(
                    f"{found.where[name]} is {value[0]}, which the script does not set; "
                    f"give it with --set {variable}=VALUE"
                )
        return found

    def _command(self, script: Script, path: str) -> list[Word]:
        """
        Returns the words of the script's command with the most options of Megatron.
        Joins lines that consist only of options. Raises DistIRError if no command has
        such options.
        """
        names = {*self.table.named(), *self.table.of_rules()}

        def known(words: list[Word]) -> int:
            return sum(_name(word.text) in names for word in words)

        best = max(script.commands, key=known, default=[])
        if not known(best):
            raise DistIRError(
                f"{path} has no command with arguments of Megatron-LM, such as "
                f"--num-layers; give the script that starts the run, or its arguments"
            )
        if best[0].text.startswith("--"):  # arguments alone, perhaps several lines
            return [w for c in script.commands if c[0].text.startswith("--") for w in c]
        return best

    def started(self, document: Document, settings: RunSettings) -> RunSettings:
        if "use-rotary-position-embeddings" in document.values:
            return replace(settings, position="rotary")
        return settings

    def settle(self, document: Document, settings: RunSettings) -> RunSettings:
        if not settings.ffn and settings.mlp == "swiglu":
            ffn = 4 * settings.d_model * 2 // 3 // 64 * 64
            settings = replace(settings, ffn=ffn)
        if "rampup-batch-size" in document.values:
            document.notes.append("--rampup-batch-size: predicted for the full batch")
        if not rules.says_vocabulary(document.values):
            document.notes.append(
                f"the vocabulary, {settings.vocab} words, is that of the tokenizer"
            )
        if settings.batch or not settings.devices:
            return settings
        parts = settings.devices // (settings.t * settings.p * settings.c)
        return replace(settings, batch=settings.micro_batch * parts)

    def check(self, settings: RunSettings) -> list[str]:
        remarks: list[str] = []
        if settings.zero > 1 and settings.p > 1:
            remarks.append(
                "Megatron FSDP and pipelines need Megatron-Core 0.14 or newer"
            )
        if settings.no_sync:
            remarks.append("megatron reduces gradients of FSDP in each micro-batch")
        if settings.checkpoint.startswith("full"):
            remarks.append(
                "megatron recomputes whole layers; the plan recomputes only what "
                "gradients need"
            )
        if settings.sequence_parallel is False and settings.experts and settings.t > 1:
            remarks.append("megatron wants --sequence-parallel with experts and -t > 1")
        return remarks

    def render(
        self,
        values: Mapping[str, Any],
        settings: RunSettings,
        launch: Mapping[str, Any],
    ) -> str:
        lines = [
            f"torchrun --nproc-per-node {settings.per_node} --nnodes {settings.nodes}",
            launch.get("script") or "pretrain_gpt.py",
        ]
        for name, value in values.items():
            if value is False or value is None:
                continue
            lines.append(
                f"--{name}"
                if value is True or value == ""
                else f"--{name} {_text(value)}"
            )
        return "#!/bin/bash\n" + " \\\n    ".join(lines) + "\n"


def _name(text: str) -> str:
    return text.partition("=")[0].removeprefix("--").replace("_", "-")


def _flags(words: list[Word], path: str) -> dict[str, tuple[Any, int]]:
    """
    Returns the value and the line number of each flag. A flag without a value is True;
    several values are joined by spaces. Raises DistIRError for a word before the first
    flag.
    """
    found: dict[str, tuple[Any, int]] = {}
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word.text):
            key, equals, value = word.text.partition("=")
            name = key.lstrip("-")
            name = name if name in HARMLESS else name.replace("_", "-")
            found[name] = (value if equals else True, word.line)
        elif not name:
            raise DistIRError(
                f"{path}, line {word.line}: {word.text!r} stands before the first flag"
            )
        else:
            old = found[name][0]
            text = word.text if old is True else f"{old} {word.text}"
            found[name] = (text, found[name][1])
    return found


def _text(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if re.fullmatch(r"[\w./,:=+@%$\s{}-]*", text) else f"'{text}'"
