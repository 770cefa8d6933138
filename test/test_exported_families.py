"""
Families of models as users export them: three AdamW steps of what is imported are those
of PyTorch, or the import says how to export.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.trained_steps import (
    assert_equal_steps,
    differentiated,
    exported_by_default,
    exported_by_trace,
)

from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.onnx.importer import import_onnx
from distir.frontends.torch.importer import export_onnx, import_torch

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
CODED: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


@dataclass
class Family:
    """
    A module, its inputs and labels for its first result, and patterns of the names of
    those of its parameters that require no gradient.
    """

    module: torch.nn.Module
    inputs: dict[str, torch.Tensor]
    classes: int
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Parameters that begin as zeros or ones get other values: all are to differ."""
        self.module.eval()
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
            self.labels = torch.randint(0, self.classes, self.first().shape[:-1])

    def first(self, module: torch.nn.Module | None = None) -> torch.Tensor:
        return (module or self.module)(**self.inputs)[0]

    def assert_trains_like_pytorch(self, imported: ImportedModel) -> None:
        inputs = {n: v.numpy() for n, v in self.inputs.items()}
        assert_equal_steps(
            differentiated(imported, "cross_entropy"),
            self.module,
            {**inputs, "labels": self.labels.numpy()},
            lambda module: torch.nn.functional.cross_entropy(
                self.first(module).flatten(0, -2), self.labels.flatten()
            ),
        )


def vit() -> Family:
    images: dict[str, Any] = {"image_size": 8, "patch_size": 4, "num_labels": 5}
    config = transformers.ViTConfig(**SIZES, **images)
    module = transformers.ViTForImageClassification(config)
    return Family(module, {"pixel_values": torch.randn(4, 3, 8, 8)}, 5)


def qwen2() -> Family:
    config = transformers.Qwen2Config(
        **SIZES, vocab_size=64, num_key_value_heads=1, use_cache=False
    )
    module = transformers.Qwen2ForCausalLM(config)
    return Family(module, {"input_ids": torch.randint(0, 64, (2, 8))}, 64)


def clip() -> Family:
    """With a temperature that is a scalar parameter of the whole model."""
    text = {"vocab_size": 64, "max_position_embeddings": 8, "projection_dim": 8}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    vision = {"image_size": 8, "patch_size": 4, "projection_dim": 8}
    config = transformers.CLIPConfig(
        text_config=SIZES | text | tokens,
        vision_config=SIZES | vision,
        projection_dim=8,
    )
    ids = torch.randint(3, 64, (4, 8))
    inputs = {
        "input_ids": ids,
        "pixel_values": torch.randn(4, 3, 8, 8),
        "attention_mask": torch.ones_like(ids),
    }
    return Family(transformers.CLIPModel(config), inputs, 4)


def whisper() -> Family:
    """With positions that are parameters and fixed."""
    config = transformers.WhisperConfig(
        **CODED,
        vocab_size=64,
        num_mel_bins=8,
        max_source_positions=8,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    inputs = {
        "input_features": torch.randn(2, 8, 16),
        "decoder_input_ids": torch.randint(3, 64, (2, 6)),
    }
    module = transformers.WhisperForConditionalGeneration(config)
    return Family(module, inputs, 64, ("model.encoder.embed_positions.weight",))


def detr() -> Family:
    """With a frozen backbone."""
    stages: dict[str, Any] = {
        "embedding_size": 8,
        "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage4"],
    }
    backbone: dict[str, Any] = {
        "backbone_config": transformers.ResNetConfig(**stages),
        "use_timm_backbone": False,
    }
    config = transformers.DetrConfig(**CODED, **backbone, num_queries=4)
    module = transformers.DetrForObjectDetection(config)
    module.model.freeze_backbone()
    inputs = {
        "pixel_values": torch.randn(2, 3, 64, 64),
        "pixel_mask": torch.ones(2, 64, 64, dtype=torch.long),
    }
    return Family(module, inputs, 3, ("model.backbone.*",))


def bart() -> Family:
    """With a bias of the logits that is a buffer."""
    config = transformers.BartConfig(
        **CODED, vocab_size=64, max_position_embeddings=16, use_cache=False
    )
    ids, answer = torch.randint(3, 64, (2, 8)), torch.randint(3, 64, (2, 6))
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "decoder_input_ids": answer,
        "decoder_attention_mask": torch.ones_like(answer),
    }
    return Family(transformers.BartForConditionalGeneration(config), inputs, 64)


Make = Callable[[], Family]

FAMILIES = [
    pytest.param(make, marks=() if make is vit else pytest.mark.slow, id=make.__name__)
    for make in (vit, qwen2, clip, whisper, detr, bart)
]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("make", FAMILIES)
def test_by_default_it_is_refused_with_the_way_to_export(make: Make, tmp_path: Path):
    family = make()
    path = exported_by_default(family.module, (), tmp_path / "m.onnx", family.inputs)
    with pytest.raises(DistIRError, match=r"cannot train .*; export .*optimize=False"):
        differentiated(import_onnx(path), "cross_entropy")


@pytest.mark.parametrize("make", FAMILIES)
def test_exported_in_that_way_it_trains_like_pytorch(make: Make, tmp_path: Path):
    family = make()
    export_onnx(family.module, (), tmp_path / "m.onnx", family.inputs)
    family.assert_trains_like_pytorch(
        import_onnx(tmp_path / "m.onnx", frozen=family.frozen)
    )


@pytest.mark.slow
def test_a_pattern_for_what_was_folded_says_how_to_export(tmp_path: Path):
    """Whisper's fixed positions are a table of another name by default."""
    family = whisper()
    path = exported_by_default(family.module, (), tmp_path / "m.onnx", family.inputs)
    with pytest.raises(DistIRError, match=r"embed_positions.*optimize=False"):
        import_onnx(path, frozen=family.frozen)


@pytest.mark.slow
@pytest.mark.parametrize("make", (whisper, detr))
def test_frozen_parameters_need_no_pattern_in_python(make: Make):
    family = make()
    family.assert_trains_like_pytorch(import_torch(family.module, (), family.inputs))


@pytest.mark.slow
def test_bart_from_torchscript(tmp_path: Path):
    family = bart()
    options = {"do_constant_folding": False}
    options["training"] = torch.onnx.TrainingMode.PRESERVE  # type: ignore[assignment]
    inputs = tuple(family.inputs.values())
    names = list(family.inputs)
    path = tmp_path / "bart.onnx"
    exported_by_trace(family.module, inputs, path, input_names=names)
    with pytest.raises(DistIRError, match=r"cannot train .*do_constant_folding=False"):
        differentiated(import_onnx(path), "cross_entropy")
    exported_by_trace(family.module, inputs, path, input_names=names, **options)
    with pytest.raises(
        DistIRError, match=r"cannot train final_logits_bias: .*--frozen"
    ):
        differentiated(import_onnx(path), "cross_entropy")
    imported = import_onnx(path, frozen=["final_logits_bias"])
    family.assert_trains_like_pytorch(imported)
