"""
Builders of models by name, without weights, and published sizes of these models.

Each builder is a function in the file of its model. The function's arguments are the
options of `distir build MODEL`. Modules and parameters have the names of the PyTorch
model that the builder follows. Repeated layers are calls of one function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIZES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "gpt": {
        # GPT-2's: Table 2 of "Language Models are Unsupervised Multitask Learners", 2019,
        # with the heads of the released models. From 1.6B on: Table 1 of DistIR's paper.
        name: dict(layers=layers, d_model=width, heads=heads, vocab=50257)
        for name, layers, width, heads in (
            ("124M", 12, 768, 12),
            ("355M", 24, 1024, 16),
            ("774M", 36, 1280, 20),
            ("1.6B", 24, 2048, 16),
            ("13B", 40, 5120, 40),
            ("175B", 96, 12288, 96),
        )
    },
    "mlp": {
        # Table 1 of DistIR's paper.
        "1B": dict(layers=16, d_model=8192),
        "17B": dict(layers=64, d_model=16384),
        "103B": dict(layers=96, d_model=32768),
    },
    "llama": {
        # LLaMA 3: Table 3 of "The Llama 3 Herd of Models", 2024.
        name: dict(
            layers=layers,
            d_model=width,
            heads=heads,
            kv_heads=8,
            ffn=ffn,
            vocab=128256,
            theta=500000.0,
        )
        for name, layers, width, heads, ffn in (
            ("8B", 32, 4096, 32, 14336),
            ("70B", 80, 8192, 64, 28672),
            ("405B", 126, 16384, 128, 53248),
        )
    },
    "bert": {
        # "BERT: Pre-training of Deep Bidirectional Transformers", 2019; the vocabulary of
        # DNABERT (Bioinformatics 37(15), 2021) is all sequences of six bases.
        "base": dict(layers=12, d_model=768, heads=12, vocab=30522, seq=512),
        "large": dict(layers=24, d_model=1024, heads=16, vocab=30522, seq=512),
        "DNABERT": dict(layers=12, d_model=768, heads=12, vocab=4101, seq=512),
    },
    "t5": {
        # "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
        # Transformer", 2020; those whose heads are as wide as the model in all.
        "small": dict(layers=6, d_model=512, heads=8, vocab=32128, seq=512),
        "base": dict(layers=12, d_model=768, heads=12, vocab=32128, seq=512),
        "large": dict(layers=24, d_model=1024, heads=16, vocab=32128, seq=512),
    },
    "vit": {
        # Table 1 of "An Image is Worth 16x16 Words", 2021.
        "base": dict(layers=12, d_model=768, heads=12, classes=1000),
        "large": dict(layers=24, d_model=1024, heads=16, classes=1000),
        "huge": dict(layers=32, d_model=1280, heads=16, classes=1000, patch=14),
    },
    "wide-resnet": {
        # ResNet-50 and -101 as in torchvision; Table 4 of Rhino, by its names.
        "50": dict(layers=50, channels=64),
        "101": dict(layers=101, channels=64),
        "1.3B": dict(layers=50, channels=320, width_factor=2),
        "2.6B": dict(layers=50, channels=448, width_factor=2),
        "6B": dict(layers=50, channels=640, width_factor=2),
        "12B": dict(layers=101, channels=320, width_factor=12),
    },
    "vgg": {
        # VGG19, and Rhino's with a classifier of a million faces.
        "19": dict(classes=1000),
        "19-million": dict(classes=1_000_000),
    },
    "unet": {
        "ddpm-cifar10": dict(image=32, channels=128),
    },
}
"""The builder options of each published size, by model and by size."""
