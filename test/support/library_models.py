"""Tiny models of the families that the library of schedules is for, imported once a process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.torch.importer import import_torch
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass

BATCH, LENGTH, WORDS = 4, 8, 64

SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def _words() -> torch.Tensor:
    return torch.randint(0, WORDS, (BATCH, LENGTH))


def bert() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.BertConfig(**SIZES)
    return transformers.BertForMaskedLM(config), (_words(),)


def roberta() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.RobertaConfig(**SIZES)
    return transformers.RobertaForMaskedLM(config), (_words(),)


def albert() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.AlbertConfig(**SIZES, embedding_size=8)
    return transformers.AlbertForMaskedLM(config), (_words(),)


def gpt2() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_positions=32,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config), (_words(),)


def gpt_neo() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.GPTNeoConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        max_position_embeddings=32,
        attention_types=[[["global"], 2]],
        use_cache=False,
    )
    return transformers.GPTNeoForCausalLM(config), (_words(),)


def opt() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.OPTConfig(
        vocab_size=WORDS,
        hidden_size=16,
        word_embed_proj_dim=16,
        ffn_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        use_cache=False,
    )
    return transformers.OPTForCausalLM(config), (_words(),)


def t5() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        use_cache=False,
    )
    model = transformers.T5ForConditionalGeneration(config)
    model.set_attn_implementation("eager")
    return model, (_words(), torch.ones(BATCH, LENGTH, dtype=torch.int64), _words())


def llama() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, use_cache=False)
    return transformers.LlamaForCausalLM(config), (_words(),)


def mixtral() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    config = transformers.MixtralConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=4, use_cache=False
    )
    return transformers.MixtralForCausalLM(config), (_words(),)


def vit() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    sizes = {k: v for k, v in SIZES.items() if not k.startswith(("vocab", "max"))}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4)
    return transformers.ViTForImageClassification(config), (
        torch.randn(BATCH, 3, 8, 8),
    )


class Bottleneck(nn.Module):
    """A block of torchvision's residual networks, by its names."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.bn1(self.conv1(x)))
        h = torch.relu(self.bn2(self.conv2(h)))
        return torch.relu(self.bn3(self.conv3(h)) + x)


class WideResnet(nn.Module):
    """A stage of torchvision's wide residual networks between its first and last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Bottleneck(8, 16), Bottleneck(8, 16))
        self.fc = nn.Linear(8, 8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.bn1(self.conv1(image)))
        h = self.layer1(nn.functional.max_pool2d(h, 3, 2, 1))
        return self.fc(h.mean((2, 3)))


def wide_resnet() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return WideResnet(), (torch.randn(BATCH, 3, 8, 8),)


FAMILIES: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    f.__name__: f
    for f in (
        bert,
        roberta,
        albert,
        gpt2,
        gpt_neo,
        opt,
        t5,
        llama,
        mixtral,
        vit,
        wide_resnet,
    )
}


@functools.cache
def family(name: str) -> ModuleOp:
    """The program of a tiny model, with layers as functions."""
    torch.manual_seed(0)
    module, inputs = FAMILIES[name]()
    found = import_torch(module.eval(), inputs).module
    for prepared in (FoldShapesPass(), OutlineRepeatsPass()):
        prepared.apply(Context(), found)
    return found
