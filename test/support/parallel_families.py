"""Trains models of several families in parallel and on one process."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import distir
from support.parallel_scripts import own_part, whole

BATCH, LENGTH, WORDS = 8, 8, 64


@dataclass(frozen=True)
class Family:
    """A model, example inputs by name, and a loss of (output, labels) for it."""

    module: nn.Module
    inputs: dict[str, torch.Tensor]
    labels: torch.Tensor
    loss: Any
    plain_loss: Callable[[Any, torch.Tensor], torch.Tensor]


def _logits(output: Any, labels: torch.Tensor) -> torch.Tensor:
    logits = getattr(output, "logits", output)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _of_words(module: nn.Module, **more: torch.Tensor) -> Family:
    words = torch.randint(0, WORDS, (BATCH, LENGTH))
    labels = torch.randint(0, WORDS, (BATCH, LENGTH))
    return Family(
        module, {"input_ids": words, **more}, labels, "cross_entropy", _logits
    )


def _of_images(module: nn.Module, name: str, size: int, classes: int) -> Family:
    images = torch.randn(BATCH, 3, size, size)
    labels = torch.randint(0, classes, (BATCH,))
    return Family(module, {name: images}, labels, _logits, _logits)


def gpt2() -> Family:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return _of_words(GPT2LMHeadModel(config))


def llama() -> Family:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        use_cache=False,
    )
    return _of_words(LlamaForCausalLM(config))


def bert() -> Family:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[::2, -2:] = 0
    return _of_words(BertForMaskedLM(config), attention_mask=mask)


def t5(dropout: float = 0.0) -> Family:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=dropout,
        use_cache=False,
    )
    module = T5ForConditionalGeneration(config)
    words = torch.randint(0, WORDS, (BATCH, LENGTH))
    return _of_words(module, decoder_input_ids=words)


def vit() -> Family:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=8,
        patch_size=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config.num_labels = 4
    return _of_images(ViTForImageClassification(config), "pixel_values", 8, 4)


def resnet() -> Family:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
    )
    config.num_labels = 4
    return _of_images(ResNetForImageClassification(config), "pixel_values", 16, 4)


class _UNet(nn.Module):
    """
    A U-Net with two ways up, by a transposed convolution and by resizing, and a skip
    connection.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.joined = nn.Conv2d(32, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns four numbers for each pixel."""
        whole = F.relu(self.first(images))
        small = F.relu(self.down(whole))
        large = F.interpolate(small, scale_factor=2.0, mode="nearest")
        smooth = F.interpolate(small, whole.shape[2:], mode="bilinear")[:, :8]
        joined = torch.cat([whole + self.up(small), large, smooth], 1)
        return self.head(F.relu(self.joined(joined)))


def unet() -> Family:
    images, labels = torch.randn(BATCH, 3, 8, 8), torch.randint(0, 4, (BATCH, 8, 8))
    plain = F.cross_entropy
    return Family(_UNet(), {"images": images}, labels, plain, plain)


class _Recurrent(nn.Module):
    """
    Two layers of long short-term memory in both directions, followed by gated recurrent
    units.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.first = nn.LSTM(16, 8, 2, batch_first=True, bidirectional=True)
        self.second = nn.GRU(16, 8, batch_first=True)
        self.head = nn.Linear(8, WORDS)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Returns logits for each token."""
        return self.head(self.second(self.first(self.words(input_ids))[0])[0])


def lstm() -> Family:
    return _of_words(_Recurrent())


FAMILIES = {f.__name__: f for f in (gpt2, llama, bert, t5, vit, resnet, unet, lstm)}
QUICK = ("llama", "unet", "lstm")
"""The families that `make test` trains."""


def _train(
    module: nn.Module,
    loss: Callable[[], torch.Tensor],
    clip: Callable[[float], torch.Tensor],
    steps: int,
) -> list[float]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    found: list[float] = []
    for _ in range(steps):
        value = loss()
        value.backward()
        clip(0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        found.append(value.item())
    return found


def dropped_t5_run(options: dict[str, Any]) -> list[float]:
    """Returns the losses of steps of a T5 with dropout, which begins alike on all ranks."""
    torch.manual_seed(0)
    family = t5(dropout=0.1)
    parallel = distir.parallelize(
        family.module, (), family.inputs, loss=family.loss, **options
    ).train()
    own = {n: own_part(parallel, v) for n, v in family.inputs.items()}
    labels = own_part(parallel, family.labels)
    clip = parallel.clip_grad_norm_
    return _train(parallel, lambda: parallel(labels, **own), clip, 3)


def family_run(name: str, options: dict[str, Any], steps: int) -> dict[str, Any]:
    """
    Returns losses and parameters after some steps on one batch, in parallel and on one
    process.
    """
    torch.manual_seed(0)
    family = FAMILIES[name]()
    torch.manual_seed(0)
    plain = FAMILIES[name]().module
    parallel = distir.parallelize(
        family.module, (), family.inputs, loss=family.loss, **options
    ).train()
    plain.train()
    own = {n: own_part(parallel, v) for n, v in family.inputs.items()}
    own_labels = own_part(parallel, family.labels)
    parameters = list(plain.parameters())
    found = _train(
        parallel,
        lambda: parallel(own_labels, **own),
        parallel.clip_grad_norm_,
        steps,
    )
    expected = _train(
        plain,
        lambda: family.plain_loss(plain(**family.inputs), family.labels),
        lambda norm: nn.utils.clip_grad_norm_(parameters, norm),
        steps,
    )
    state = plain.state_dict()
    worst = (0.0, "")
    states = parallel.state_dict()
    states.pop("distir.optimizer.step", None)  # the counter of dropout's masks
    for key, value in states.items():
        difference = (whole(value).double() - state[key].double()).norm()
        worst = max(
            worst,
            ((difference / state[key].double().norm().clamp(min=1e-3)).item(), key),
        )
    split = sum(
        math.prod(p.shape) > p.to_local().numel()  # type: ignore[union-attr]
        for p in parallel.parameters()
    )
    return {
        "rank": dist.get_rank(),
        "found": found,
        "expected": expected,
        "worst": worst,
        "names": set(states),
        "all names": set(state),
        "split": split,
    }
