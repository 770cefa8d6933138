"""
Megatron Bridge: writes a Python function that sets a plan in a recipe's
ConfigContainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from distir.errors import DistIRError
from distir.exports.systems.megatron import REFUSED, SOURCE, Megatron
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.system import Document, System
from distir.exports.systems.table import OptionTable

_TYPES = {"f32": "torch.float32", "bf16": "torch.bfloat16", "f16": "torch.float16"}

_PLACES = {
    "micro-batch-size": "train.micro_batch_size",
    "global-batch-size": "train.global_batch_size",
    "num-experts": "model.num_moe_experts",
    "num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
    "use-distributed-optimizer": "ddp.use_distributed_optimizer",
    "use-megatron-fsdp": "ddp.use_megatron_fsdp",
    "data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "overlap-grad-reduce": "ddp.overlap_grad_reduce",
    "overlap-param-gather": "ddp.overlap_param_gather",
    "tp-comm-overlap": "comm_overlap.tp_comm_overlap",
    "optimizer-cpu-offload": "optimizer.optimizer_cpu_offload",
    "fp8-format": "model.fp8",
    "fp4-format": "model.fp4",
}
"""
Megatron's options that are not `model.NAME` in a ConfigContainer, with their names
there.
"""

_LEFT_OUT = {
    *("bf16", "fp16", "grad-reduce-in-bf16", "accumulate-allreduce-grads-in-fp32"),
    *("group-query-attention", "swiglu", "disable-bias-linear", "tokenizer-type"),
    *("untie-embeddings-and-output-weights", "no-gradient-accumulation-fusion"),
    *("num-layers-per-virtual-pipeline-stage", "max-position-embeddings", "vocab-size"),
}


class MegatronBridge(System):
    """
    Megatron Bridge, which configures Megatron-Core in Python. DistIR can only write its
    recipes: `parse` raises DistIRError.
    """

    name: ClassVar[str] = "megatron-bridge"
    table: ClassVar[OptionTable] = OptionTable(
        Megatron.table.rows, Megatron.table.rules, (), REFUSED,
        f"Megatron Bridge, ConfigContainer, over {SOURCE}",
    )  # fmt: skip
    suffixes: ClassVar[tuple[str, ...]] = (".py",)

    def parse(self, text: str, path: str, given: Mapping[str, str]) -> Document:
        raise DistIRError(
            "recipes of Megatron Bridge are Python programs, which DistIR does not run; give "
            "the arguments of Megatron-LM, or NeMo's YAML"
        )

    def vocabulary(self, settings: RunSettings) -> int:
        return Megatron().vocabulary(settings)

    def check(self, settings: RunSettings) -> list[str]:
        return Megatron().check(settings)

    def render(
        self,
        values: Mapping[str, Any],
        settings: RunSettings,
        launch: Mapping[str, Any],
    ) -> str:
        found: dict[str, Any] = {
            _PLACES.get(name, f"model.{name.replace('-', '_')}"): value
            for name, value in values.items()
            if name not in _LEFT_OUT
        }
        found["model.gated_linear_unit"] = settings.mlp == "swiglu"
        found["model.add_bias_linear"] = settings.bias
        found["model.share_embeddings_and_output_weights"] = settings.tied
        found["model.seq_length"] = settings.seq
        found["model.vocab_size"] = settings.vocab
        if settings.kv_heads != settings.heads:
            found["model.num_query_groups"] = settings.kv_heads
        if settings.chunks:
            found["model.virtual_pipeline_model_parallel_size"] = settings.chunks
        found["ddp.grad_reduce_in_fp32"] = settings.gradients_f32
        lines = [f"    cfg.{name} = {value!r}" for name, value in found.items()]
        types = _TYPES[settings.dtype]
        lines += [
            f"    cfg.model.params_dtype = {types}",
            f"    cfg.model.pipeline_dtype = {types}",
            f"    cfg.model.bf16 = {settings.dtype == 'bf16'}",
            f"    cfg.model.fp16 = {settings.dtype == 'f16'}",
        ]
        body = "\n".join(lines)
        return f'''"""
The plan for Megatron Bridge; run it with
torchrun --nproc-per-node {settings.per_node} --nnodes {settings.nodes}.
"""

import torch


def apply_plan(cfg):
    """Sets the plan in `cfg`, the ConfigContainer of a recipe, and returns it."""
{body}
    return cfg
'''
