"""
Training steps of each family of models, small, but large enough that tensors decide what is in
memory: those that the simulator's memory is compared on with that of packages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_mlp, build_moe
from distir.frontends.models.unet import build_unet
from distir.frontends.torch.importer import import_torch
from distir.passes.differentiate import DifferentiatePass
from distir.passes.expand_float8 import ExpandFloat8Pass
from distir.passes.float8 import Float8Pass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.passes.raise_patterns import RaisePatternsPass
from support.models import ResidualBlock


def _imported(module: nn.Module, given: torch.Tensor, training: bool) -> ModuleOp:
    program, context = (
        import_torch(module, (given,), training=training).module,
        Context(),
    )
    for each in (FoldShapesPass(), RaisePatternsPass(), OutlineRepeatsPass()):
        each.apply(context, program)
    return program


def _llama() -> ModuleOp:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        hidden_size=128,
        intermediate_size=344,
        vocab_size=512,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).eval()
    return _imported(model, torch.randint(0, 512, (8, 64)), False)


def _bert() -> ModuleOp:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=4,
        num_attention_heads=8,
        hidden_size=128,
        intermediate_size=512,
        vocab_size=512,
        max_position_embeddings=64,
    )
    model = BertForMaskedLM(config).eval()
    return _imported(model, torch.randint(0, 512, (8, 64)), False)


class _Resnet(nn.Module):
    """A stem, three residual blocks of 16 channels, 16 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(16) for _ in range(3)))
        self.head = nn.Linear(16, 16)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.pool(torch.relu(self.bn(self.stem(image)))))
        return self.head(hidden.mean((2, 3)))


def _resnet() -> ModuleOp:
    return _imported(_Resnet().train(), torch.randn(8, 3, 32, 32), True)


class _Logits(nn.Module):
    """A model of transformers of which the logits alone are returned."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model
        self.is_coded = bool(model.config.is_encoder_decoder)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if self.is_coded:
            return self.model(input_ids=given, decoder_input_ids=given).logits
        return self.model(given).logits


def _vit() -> ModuleOp:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=512,
        image_size=64,
        patch_size=8,
    )
    config.num_labels = 64
    model = _Logits(ViTForImageClassification(config)).eval()
    return _imported(model, torch.randn(8, 3, 64, 64), False)


def _t5() -> ModuleOp:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=512,
        d_model=128,
        d_kv=16,
        d_ff=512,
        num_layers=3,
        num_heads=8,
        use_cache=False,
    )
    model = _Logits(T5ForConditionalGeneration(config)).eval()
    return _imported(model, torch.randint(0, 512, (8, 64)), False)


def _mamba() -> ModuleOp:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=512,
        hidden_size=128,
        state_size=8,
        num_hidden_layers=3,
        time_step_rank=8,
        tie_word_embeddings=False,
        use_cache=False,
    )
    model = _Logits(MambaForCausalLM(config)).eval()
    return _imported(model, torch.randint(0, 512, (8, 64)), False)


def _float8() -> ModuleOp:
    """A GPT whose products are in 8-bit floats."""
    program = _BUILDERS["gpt"]()
    Float8Pass().apply(Context(), program)
    return program


_BUILDERS: dict[str, Callable[[], ModuleOp]] = {
    "gpt": lambda: build_gpt(
        layers=4, d_model=128, heads=8, vocab=512, batch=8, seq=64
    ),
    "gpt_parameters": lambda: build_gpt(
        layers=4, d_model=256, heads=8, vocab=512, batch=8, seq=16
    ),
    "mlp": lambda: build_mlp(layers=6, d_model=256, batch=128),
    "moe": lambda: build_moe(
        layers=4, d_model=64, heads=4, experts=4, vocab=256, batch=8, seq=32
    ),
    "llama": _llama,
    "bert": _bert,
    "resnet": _resnet,
    "unet": lambda: build_unet(
        8, 32, 32, multipliers=(1, 2), blocks=1, attention_at=16, groups=4
    ),
    "vit": _vit,
    "t5": _t5,
    "mamba": _mamba,
    "float8": _float8,
}


@functools.cache
def training_step(family: str) -> ModuleOp:
    """A step of a model of that family with AdamW; it must stay as it is."""
    torch.manual_seed(0)
    module = _BUILDERS[family]()
    loss = "mse" if family in ("mlp", "unet") else "cross_entropy"
    DifferentiatePass(loss=loss, optimizer="adamw").apply(Context(), module)
    ExpandFloat8Pass().apply(Context(), module)
    return module
