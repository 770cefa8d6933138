"""The models of the golden record: training steps and inference, built and imported."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import distir
from distir.facade.model_program import ModelProgram

GPT: dict[str, Any] = dict(layers=4, d_model=256, heads=8, vocab=512, batch=16, seq=64)


def _built(kind: str, **options: Any) -> ModelProgram:
    return distir.build(kind, **options)


def _step(kind: str, **options: Any) -> ModelProgram:
    return _built(kind, training=True, **options)


def _imported(family: str, training: bool = True) -> ModelProgram:
    """Imports a small model of the zoo."""
    import torch
    from zoo.families import families

    torch.set_num_threads(1)
    model = families()[family].made()
    model.mode(training)
    options: dict[str, Any] = {}
    if training:
        options = dict(training=True, loss=model.loss, loss_output=model.output)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's exporter
        return distir.import_model(model.module, kwargs=model.inputs, **options)


MODELS: dict[str, Callable[[], ModelProgram]] = {
    "gpt": partial(_step, "gpt", **GPT),
    "gpt-f16": partial(
        _step, "gpt", dtype="f16", **GPT | dict(d_model=512, vocab=2048)
    ),
    "gpt-dropout": partial(_step, "gpt", dropout=0.1, **GPT),
    "gpt-float8": partial(_step, "gpt", dtype="bf16", float8="tensor", **GPT),
    "gpt-forward": partial(_built, "gpt", **GPT),
    "gpt-decoding": partial(
        _built, "gpt", decode=96, **GPT | dict(seq=1, vocab=1024), dtype="f16"
    ),
    "llama": partial(_step, "llama", kv_heads=4, dtype="bf16", **GPT),
    "llama-tied": partial(_step, "llama", tied=True, optimizer="sgd", clip=1.0, **GPT),
    "moe": partial(_step, "moe", experts=8, **GPT),
    "mlp": partial(_step, "mlp", layers=6, d_model=512, batch=64, loss="mse"),
    "bert": partial(
        _step, "bert", **GPT | dict(batch=8), optimizer="adam", ignore_index=-100
    ),
    "t5": partial(_step, "t5", **GPT | dict(layers=2, batch=8)),
    "vit": partial(
        _step, "vit", layers=3, d_model=192, heads=6, classes=10, batch=16, image=64
    ),
    "resnet": partial(
        _step,
        "wide-resnet",
        size="50",
        batch=16,
        image=32,
        classes=10,
        momentum=0.9,
        optimizer="sgd",
    ),
    "unet": partial(_step, "unet", batch=8, image=16, channels=32, loss="mse"),
    **{
        name: partial(_imported, name)
        for name in (
            "gpt2",
            "mixtral",
            "deepseek-v3",
            "mamba",
            "lstm",
            "swin",
            "whisper",
            "clip",
            "deberta-v2",
            "efficientnet",
        )
    },
    "qwen3-forward": partial(_imported, "qwen3", training=False),
    "detr-forward": partial(_imported, "detr", training=False),
}
"""What makes the program of each model, by its name."""
