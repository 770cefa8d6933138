"""Models of transformers that see and hear, and those that also read."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from zoo.model import (
    BATCH,
    FAMILIES,
    WORDS,
    Family,
    Loss,
    ZooModel,
    family,
    images,
    words,
)

SIZES: dict[str, Any] = dict(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
)
SMALL: dict[str, Any] = dict(image_size=8, patch_size=4)
LEVELS: dict[str, Any] = dict(
    image_size=32,
    patch_size=4,
    embed_dim=8,
    depths=[1, 1],
    num_heads=[2, 4],
    window_size=4,
)


def _config(name: str, **options: Any) -> Any:
    """Returns the configuration of that class; its options are not in its signature."""
    return getattr(transformers, name)(**options)


def _sees(
    name: str,
    config: str,
    model: str,
    size: int,
    loss: Loss = "cross_entropy",
    *,
    double: bool = False,
    **options: Any,
) -> None:
    """Registers a model of images, compared in 64 bits with `double`."""

    def make() -> ZooModel:
        made = getattr(transformers, config)(**options)
        module = getattr(transformers, model)(made)
        return ZooModel(module, {"pixel_values": images(size)}, loss)

    FAMILIES[name] = Family(name, "transformers", make, double)


_sees(
    "vit", "ViTConfig", "ViTForImageClassification", 8, **SIZES, **SMALL, num_labels=4
)
_sees(
    "beit",
    "BeitConfig",
    "BeitForImageClassification",
    8,
    **SIZES,
    **SMALL,
    num_labels=4,
    use_relative_position_bias=True,
)
_sees(
    "dinov2",
    "Dinov2Config",
    "Dinov2ForImageClassification",
    8,
    **SIZES,
    **SMALL,
    num_labels=4,
)
_sees("swin", "SwinConfig", "SwinForImageClassification", 32, **LEVELS, num_labels=4)
_sees(
    "swinv2", "Swinv2Config", "Swinv2ForImageClassification", 32, **LEVELS, num_labels=4
)
_sees(
    "convnext",
    "ConvNextConfig",
    "ConvNextForImageClassification",
    32,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    num_stages=2,
    num_labels=4,
)
_sees(
    "resnet",
    "ResNetConfig",
    "ResNetForImageClassification",
    32,
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    layer_type="bottleneck",
    num_labels=4,
)
_sees(
    "regnet",
    "RegNetConfig",
    "RegNetForImageClassification",
    32,
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    groups_width=4,
    num_labels=4,
)
_sees(
    "mobilenet-v2",
    "MobileNetV2Config",
    "MobileNetV2ForImageClassification",
    32,
    double=True,
    depth_multiplier=0.25,
    num_labels=4,
)
_sees(
    "mobilevit",
    "MobileViTConfig",
    "MobileViTForImageClassification",
    32,
    image_size=32,
    hidden_sizes=[8, 12, 16],
    neck_hidden_sizes=[4, 8, 8, 8, 8, 8, 8],
    num_labels=4,
)
_sees(
    "poolformer",
    "PoolFormerConfig",
    "PoolFormerForImageClassification",
    32,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    num_encoder_blocks=2,
    patch_sizes=[7, 3],
    strides=[4, 2],
    padding=[2, 1],
    num_labels=4,
)
_sees(
    "segformer",
    "SegformerConfig",
    "SegformerForSemanticSegmentation",
    32,
    "mse",
    hidden_sizes=[8, 16],
    depths=[1, 1],
    num_encoder_blocks=2,
    num_attention_heads=[1, 2],
    sr_ratios=[2, 1],
    patch_sizes=[7, 3],
    strides=[4, 2],
    mlp_ratios=[2, 2],
    decoder_hidden_size=16,
    num_labels=4,
)
_sees(
    "dpt",
    "DPTConfig",
    "DPTForSemanticSegmentation",
    16,
    "mse",
    **SIZES,
    image_size=16,
    patch_size=4,
    backbone_out_indices=[0, 1],
    neck_hidden_sizes=[8, 8],
    fusion_hidden_size=8,
    num_labels=4,
    is_hybrid=False,
)
_sees(
    "levit",
    "LevitConfig",
    "LevitForImageClassification",
    64,
    double=True,
    image_size=64,
    hidden_sizes=[8, 16, 16],
    num_attention_heads=[2, 4, 4],
    depths=[1, 1, 1],
    key_dim=[4, 4, 4],
    attention_ratio=[2, 2, 2],
    mlp_ratio=[2, 2, 2],
    num_labels=4,
)
_sees(
    "pvt-v2",
    "PvtV2Config",
    "PvtV2ForImageClassification",
    32,
    image_size=32,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    num_encoder_blocks=2,
    num_attention_heads=[2, 4],
    sr_ratios=[2, 1],
    mlp_ratios=[2, 2],
    patch_sizes=[7, 3],
    strides=[4, 2],
    num_labels=4,
)


@family("transformers")
def detr() -> ZooModel:
    stages: dict[str, Any] = dict(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    config = _config(
        "DetrConfig",
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        backbone_config=transformers.ResNetConfig(**stages),
        use_timm_backbone=False,
        num_queries=4,
        num_labels=4,
    )
    module = transformers.DetrForObjectDetection(config)
    mask = torch.ones(BATCH, 32, 32, dtype=torch.int64)
    return ZooModel(module, {"pixel_values": images(32), "pixel_mask": mask})


def _whisper() -> torch.nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=WORDS,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_mel_bins=8,
        max_source_positions=8,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return transformers.WhisperForConditionalGeneration(config)


@family("transformers")
def whisper() -> ZooModel:
    module = _whisper()
    setattr(module.config, "use_cache", False)  # noqa: B010
    inputs = {
        "input_features": torch.randn(BATCH, 8, 16),
        "decoder_input_ids": words(6),
    }
    return ZooModel(module, inputs)


class _DecodingStep(torch.nn.Module):
    """
    The next token as `generate` computes it: with the keys and values of the tokens before
    it and of the encoder, for two layers. The cache with one more token is a result.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        decoder_input_ids: Tensor,
        encoded: Tensor,
        key0: Tensor,
        value0: Tensor,
        key1: Tensor,
        value1: Tensor,
        encoder_key0: Tensor,
        encoder_value0: Tensor,
        encoder_key1: Tensor,
        encoder_value1: Tensor,
    ) -> list[Tensor]:
        own, other = DynamicCache(), DynamicCache()
        own.update(key0, value0, 0)
        own.update(key1, value1, 1)
        other.update(encoder_key0, encoder_value0, 0)
        other.update(encoder_key1, encoder_value1, 1)
        found = self.model(
            decoder_input_ids=decoder_input_ids,
            encoder_outputs=(encoded,),
            past_key_values=EncoderDecoderCache(own, other),
            use_cache=True,
        )
        layers = found.past_key_values.self_attention_cache.layers
        cache = [part for layer in layers for part in (layer.keys, layer.values)]
        return [found.logits, *cache]


@family("transformers", "whisper-decoding")
def whisper_decoding() -> ZooModel:
    inputs = {"decoder_input_ids": words(1), "encoded": torch.randn(BATCH, 8, 16)}
    for layer in range(2):
        for name in ("key", "value"):
            inputs[f"{name}{layer}"] = torch.randn(BATCH, 4, 5, 4)
    for layer in range(2):
        for name in ("key", "value"):
            inputs[f"encoder_{name}{layer}"] = torch.randn(BATCH, 4, 8, 4)
    return ZooModel(_DecodingStep(_whisper()), inputs)


def _hears(name: str, config: str, model: str) -> None:
    """Registers a model of sound that begins with convolutions."""

    def make() -> ZooModel:
        made = getattr(transformers, config)(
            **SIZES,
            vocab_size=WORDS,
            conv_dim=[8, 8],
            conv_stride=[4, 2],
            conv_kernel=[8, 3],
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            num_feat_extract_layers=2,
            apply_spec_augment=False,
        )
        module = getattr(transformers, model)(made)
        return ZooModel(module, {"input_values": torch.randn(BATCH, 136)})

    FAMILIES[name] = Family(name, "transformers", make)


_hears("wav2vec2", "Wav2Vec2Config", "Wav2Vec2ForCTC")


@family("transformers", "ast")
def audio_spectrogram_transformer() -> ZooModel:
    config = _config(
        "ASTConfig",
        **SIZES,
        patch_size=4,
        frequency_stride=4,
        time_stride=4,
        max_length=16,
        num_mel_bins=8,
        num_labels=4,
    )
    module = transformers.ASTForAudioClassification(config)
    return ZooModel(module, {"input_values": torch.randn(BATCH, 16, 8)})


_TEXT = SIZES | dict(vocab_size=WORDS, max_position_embeddings=8, projection_dim=8)
_VISION = SIZES | SMALL | dict(projection_dim=8)
_TOKENS: dict[str, Any] = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)


class _ContrastiveLoss(torch.nn.Module):
    """A model of texts and images, with its contrastive loss over the whole batch."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, pixel_values: torch.Tensor
    ) -> torch.Tensor:
        return self.model(
            input_ids=input_ids, pixel_values=pixel_values, return_loss=True
        ).loss


@family("transformers")
def clip() -> ZooModel:
    config = transformers.CLIPConfig(
        text_config=_TEXT | _TOKENS, vision_config=_VISION, projection_dim=8
    )
    inputs = {"input_ids": words(), "pixel_values": images(8)}
    return ZooModel(_ContrastiveLoss(transformers.CLIPModel(config)), inputs, "none")


@family("transformers")
def siglip() -> ZooModel:
    config = transformers.SiglipConfig(
        text_config=SIZES | _TOKENS | dict(vocab_size=WORDS, max_position_embeddings=8),
        vision_config=SIZES | SMALL,
    )
    inputs = {"input_ids": words(), "pixel_values": images(8)}
    return ZooModel(_ContrastiveLoss(transformers.SiglipModel(config)), inputs, "none")


@family("transformers")
def vilt() -> ZooModel:
    config = _config(
        "ViltConfig",
        **SIZES,
        **SMALL,
        vocab_size=WORDS,
        max_position_embeddings=8,
        num_labels=4,
    )
    inputs = {
        "input_ids": words(),
        "attention_mask": torch.ones(BATCH, 8, dtype=torch.int64),
        "token_type_ids": torch.zeros(BATCH, 8, dtype=torch.int64),
        "pixel_values": images(8),
        "pixel_mask": torch.ones(BATCH, 8, 8, dtype=torch.int64),
    }
    return ZooModel(transformers.ViltForQuestionAnswering(config), inputs)


@family("transformers")
def llava() -> ZooModel:
    """Four tokens of each text stand for the patches of its image."""
    config = _config(
        "LlavaConfig",
        vision_config=transformers.CLIPVisionConfig(**SIZES, **SMALL),
        text_config=transformers.LlamaConfig(
            **SIZES, vocab_size=WORDS, num_key_value_heads=2, max_position_embeddings=32
        ),
        image_token_id=1,
        vision_feature_layer=-1,
    )
    config.text_config.use_cache = False
    ids = words(10)
    ids[:, 1:5] = 1
    inputs = {"input_ids": ids, "pixel_values": images(8)}
    return ZooModel(transformers.LlavaForConditionalGeneration(config), inputs)


@family("transformers", "decision-transformer")
def decision_transformer() -> ZooModel:
    config = transformers.DecisionTransformerConfig(
        state_dim=4,
        act_dim=2,
        hidden_size=16,
        n_layer=2,
        n_head=4,
        n_positions=32,
        max_ep_len=16,
    )
    inputs = {
        "states": torch.randn(BATCH, 4, 4),
        "actions": torch.randn(BATCH, 4, 2),
        "rewards": torch.randn(BATCH, 4, 1),
        "returns_to_go": torch.randn(BATCH, 4, 1),
        "timesteps": torch.arange(4).expand(BATCH, 4).clone(),
        "attention_mask": torch.ones(BATCH, 4, dtype=torch.int64),
    }
    return ZooModel(transformers.DecisionTransformerModel(config), inputs, "mse", 1)


@family("transformers", "patchtst")
def patch_tst() -> ZooModel:
    config = transformers.PatchTSTConfig(
        num_input_channels=2,
        context_length=16,
        prediction_length=4,
        patch_length=4,
        patch_stride=4,
        d_model=16,
        num_attention_heads=4,
        num_hidden_layers=2,
        ffn_dim=32,
        norm_type="layernorm",
        loss="mse",
    )
    module = transformers.PatchTSTForPrediction(config)
    return ZooModel(module, {"past_values": torch.randn(BATCH, 16, 2)}, "mse")
