"""
The models of `bench/beside_torch.py`, 4 layers of width 256 each, and the lines that a
training script changes for one process to train them on several.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WORDS, LENGTH = 2048, 64
LAYERS, WIDTH, HEADS = 4, 256, 8


class Block(nn.Module):
    """
    A layer of a GPT, with a matrix each for queries, keys and values, as plans of tensor
    parallelism need them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.proj = (
            nn.Linear(WIDTH, WIDTH) for _ in range(4)
        )
        self.c_fc, self.c_proj = (
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        """Splits the features [b, s, f] into heads: [b, heads, s, features of a head]."""
        return x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.ln_1(x)
        q, k, v = (self.heads(part(h)) for part in (self.query, self.key, self.value))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(h.transpose(1, 2).flatten(2))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A GPT as nanoGPT writes it, but for the matrices of its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.apply(self._draw)

    def _draw(self, part: nn.Module) -> None:
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear) and "bias" in dict(part.named_parameters()):
            nn.init.zeros_(part.bias)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


def built(kind: str) -> tuple[Any, Any]:
    """Returns a model with the same values in every process, and its layers."""
    torch.manual_seed(0)
    if kind == "gpt":
        gpt = Gpt().train()
        return gpt, gpt.layers
    from transformers import LlamaConfig, LlamaForCausalLM

    llama: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=WIDTH,
            intermediate_size=688,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )
    )
    return llama.train(), llama.model.layers


TENSOR_PARALLEL = """\
model = distir.parallelize(model, (words,), loss="cross_entropy", t=n)
loss = model(words, labels)
"""

CHANGES: dict[str, tuple[str, str]] = {
    "DDP": (
        """\
model = DistributedDataParallel(model, gradient_as_bucket_view=True)
sampler = DistributedSampler(dataset)
""",
        """\
model = distir.parallelize(model, (words,), d=n, overlap=True)
sampler = model.sampler(dataset)
""",
    ),
    "FSDP2": (
        """\
for layer in layers:
    fully_shard(layer)
fully_shard(model)
sampler = DistributedSampler(dataset)
""",
        """\
model = distir.parallelize(model, (words,), d=n, zero=3, overlap=True)
sampler = model.sampler(dataset)
""",
    ),
    "parallelize_module, gpt": (
        """\
mesh = init_device_mesh("cpu", (n,))
plan = {"lm_head": ColwiseParallel(output_layouts=Replicate())}
plan["wte"] = RowwiseParallel(input_layouts=Replicate())
for i in range(len(layers)):
    for name in ("query", "key", "value", "c_fc"):
        plan[f"layers.{i}.{name}"] = ColwiseParallel()
    for name in ("proj", "c_proj"):
        plan[f"layers.{i}.{name}"] = RowwiseParallel()
parallelize_module(model, mesh, plan)
""",
        TENSOR_PARALLEL,
    ),
    # As transformers' own plan for this model splits it, and the embedding.
    "parallelize_module, llama": (
        """\
mesh = init_device_mesh("cpu", (n,))
plan = {"lm_head": ColwiseParallel(output_layouts=Replicate())}
plan["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate())
for i in range(len(layers)):
    at = f"model.layers.{i}"
    for name in ("q_proj", "k_proj", "v_proj"):
        plan[f"{at}.self_attn.{name}"] = ColwiseParallel()
    plan[f"{at}.self_attn.o_proj"] = RowwiseParallel()
    for name in ("gate_proj", "up_proj"):
        plan[f"{at}.mlp.{name}"] = ColwiseParallel()
    plan[f"{at}.mlp.down_proj"] = RowwiseParallel()
parallelize_module(model, mesh, plan)
""",
        TENSOR_PARALLEL,
    ),
}
"""The lines that change, by wrapper: PyTorch's, and ours."""


def changes(wrapper: str, kind: str) -> tuple[str, str]:
    """Returns the lines that change in a script for a model: PyTorch's, and ours."""
    return CHANGES.get(wrapper) or CHANGES[f"{wrapper}, {kind}"]
