"""
The models of `bench/against_torch.py`, as Hugging Face makes them from a configuration, with
the same random weights in every process, and how an expert cuts and splits them by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


class Logits(nn.Module):
    """A Hugging Face model that returns its logits alone."""

    def __init__(self, model: nn.Module, **fixed: Any):
        super().__init__()
        self.model = model
        self.fixed = fixed

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.model(input, **self.fixed).logits


class Stage(nn.Module):
    """
    One of the stages of a pipeline: what the first computes before the layers, its own
    layers, and what the last computes after them. Parts of other stages are None.
    """

    def __init__(
        self,
        before: nn.Module | None,
        layers: nn.ModuleList,
        behind: nn.Module | None,
        rotary: nn.Module | None = None,
    ):
        super().__init__()
        self.before, self.layers, self.behind = before, layers, behind
        self.rotary = rotary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before is not None:
            x = self.before(x)
        more: dict[str, Any] = {}
        if self.rotary is not None:
            more["position_embeddings"] = self.rotary(x, torch.arange(x.shape[1])[None])
        for layer in self.layers:
            x = layer(x, attention_mask=None, **more)
            x = x[0] if isinstance(x, tuple) else x
        return x if self.behind is None else self.behind(x)


class Gpt2Embedding(nn.Module):
    """The embeddings of tokens and positions."""

    def __init__(self, body: Any):
        super().__init__()
        self.wte, self.wpe = body.wte, body.wpe

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))


@dataclass(frozen=True)
class Benched:
    """
    A model, its batch (`input` for one process) and the kinds of parallelism that are
    written by hand for it.

    - `build` makes the Hugging Face module; `classes` is the number of classes of its
      logits;
    - `blocks` returns the modules that FSDP2 shards one by one;
    - `cut` returns a stage of a pipeline of two, by its number; `tied` the parameters that
      both stages have, whose gradients are added;
    - `split` is the plan of `parallelize_module`.
    """

    build: Callable[[], nn.Module]
    input: Callable[[int], torch.Tensor]
    classes: int
    batch: int
    blocks: Callable[[Any], list[nn.Module]]
    cut: Callable[[Any, int], Stage] | None = None
    tied: Callable[[Any], list[nn.Parameter]] = lambda model: []
    split: Callable[[Any], dict[str, Any]] | None = None

    def module(self) -> Logits:
        """
        Returns the model with its weights, in evaluation mode, so that nothing is dropped.
        """
        torch.manual_seed(0)
        return Logits(self.build()).eval()

    def inputs_and_labels(self, processes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Returns the global batch of so many processes: inputs and the classes to learn.
        """
        torch.manual_seed(1)
        given = self.input(self.batch * processes)
        shape = given.shape if given.dim() == 2 else given.shape[:1]
        return given, torch.randint(0, self.classes, shape)


def _words(vocab: int, length: int) -> Callable[[int], torch.Tensor]:
    return lambda batch: torch.randint(0, vocab, (batch, length))


def _half(layers: nn.ModuleList, stage: int) -> nn.ModuleList:
    middle = len(layers) // 2
    return layers[:middle] if stage == 0 else layers[middle:]  # type: ignore[return-value]


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=8,
            hidden_size=512,
            intermediate_size=1376,
            vocab_size=4096,
            max_position_embeddings=128,
            use_cache=False,
        )
    )


def _llama_stage(logits: Any, stage: int) -> Stage:
    model = logits.model
    body = model.model
    return Stage(
        body.embed_tokens if stage == 0 else None,
        _half(body.layers, stage),
        None if stage == 0 else nn.Sequential(body.norm, model.lm_head),
        body.rotary_emb,
    )


def _llama_split(logits: Any) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    plan: dict[str, Any] = {
        "model.model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "model.lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    for i in range(len(logits.model.model.layers)):
        at = f"model.model.layers.{i}"
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            plan[f"{at}.{name}"] = ColwiseParallel()
        plan[f"{at}.mlp.gate_proj"] = plan[f"{at}.mlp.up_proj"] = ColwiseParallel()
        plan[f"{at}.self_attn.o_proj"] = RowwiseParallel()
        plan[f"{at}.mlp.down_proj"] = RowwiseParallel()
    return plan


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    none = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **none))


def _gpt2_stage(logits: Any, stage: int) -> Stage:
    model = logits.model
    body = model.transformer
    return Stage(
        Gpt2Embedding(body) if stage == 0 else None,
        _half(body.h, stage),
        None if stage == 0 else nn.Sequential(body.ln_f, model.lm_head),
    )


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    none = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForMaskedLM(
        BertConfig(
            num_hidden_layers=4,
            num_attention_heads=8,
            hidden_size=512,
            intermediate_size=2048,
            vocab_size=4096,
            max_position_embeddings=128,
            **none,
        )
    )


def _bert_stage(logits: Any, stage: int) -> Stage:
    body = logits.model.bert
    return Stage(
        body.embeddings if stage == 0 else None,
        _half(body.encoder.layer, stage),
        None if stage == 0 else logits.model.cls,
    )


def _bert_split(logits: Any) -> dict[str, Any]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    plan: dict[str, Any] = {}
    for i in range(len(logits.model.bert.encoder.layer)):
        at = f"model.bert.encoder.layer.{i}"
        for name in ("query", "key", "value"):
            plan[f"{at}.attention.self.{name}"] = ColwiseParallel()
        plan[f"{at}.attention.output.dense"] = RowwiseParallel()
        plan[f"{at}.intermediate.dense"] = ColwiseParallel()
        plan[f"{at}.output.dense"] = RowwiseParallel()
    return plan


def _resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(
        ResNetConfig(
            embedding_size=32,
            hidden_sizes=[32, 64, 128, 256],
            depths=[2, 2, 2, 2],
            layer_type="basic",
            num_labels=16,
        )
    )


MODELS: dict[str, Benched] = {
    "llama": Benched(
        _llama,
        _words(4096, 128),
        classes=4096,
        batch=4,
        blocks=lambda logits: list(logits.model.model.layers),
        cut=_llama_stage,
        split=_llama_split,
    ),
    "gpt2": Benched(
        _gpt2,
        _words(50257, 64),
        classes=50257,
        batch=4,
        blocks=lambda logits: list(logits.model.transformer.h),
        cut=_gpt2_stage,
        tied=lambda logits: [logits.model.transformer.wte.weight],
    ),
    "bert": Benched(
        _bert,
        _words(4096, 128),
        classes=4096,
        batch=4,
        blocks=lambda logits: list(logits.model.bert.encoder.layer),
        cut=_bert_stage,
        tied=lambda logits: [logits.model.bert.embeddings.word_embeddings.weight],
        split=_bert_split,
    ),
    "resnet": Benched(
        _resnet,
        lambda batch: torch.randn(batch, 3, 64, 64),
        classes=16,
        batch=8,
        blocks=lambda logits: list(logits.model.resnet.encoder.stages),
    ),
}
"""
LLaMA and BERT have 4 layers of width 512, GPT-2 is the smallest that was published (124M
parameters). GPT-2 keeps its matrices in layers that `parallelize_module` does not know. Batch
norms of the ResNet use their running statistics: DistributedDataParallel computes those of
a batch on each process for itself, which is another function.
"""
