"""Language models of transformers: decoders, encoders, and both."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from zoo.model import BATCH, FAMILIES, LENGTH, WORDS, Family, Loss, ZooModel, words

SIZES: dict[str, Any] = dict(
    vocab_size=WORDS,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
)
GROUPED = SIZES | dict(num_key_value_heads=2, head_dim=4)
UNPADDED: dict[str, Any] = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
CODED: dict[str, Any] = UNPADDED | dict(
    vocab_size=WORDS,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_position_embeddings=32,
    decoder_start_token_id=1,
)
T5: dict[str, Any] = dict(
    vocab_size=WORDS,
    d_model=16,
    d_kv=4,
    d_ff=32,
    num_layers=2,
    num_heads=4,
    decoder_start_token_id=0,
)
OLD: dict[str, Any] = dict(vocab_size=WORDS, n_layer=2, n_head=4, n_embd=16)


def _module(config: str, model: str, options: dict[str, Any]) -> torch.nn.Module:
    made = getattr(transformers, config)(**options)
    made.use_cache = False
    return getattr(transformers, model)(made)


def _decoder(name: str, config: str, model: str, **options: Any) -> None:
    """Registers a model of the next token."""

    def make() -> ZooModel:
        return ZooModel(_module(config, model, options), {"input_ids": words()})

    FAMILIES[name] = Family(name, "transformers", make)


def _encoder(
    name: str,
    config: str,
    model: str,
    loss: Loss = "cross_entropy",
    length: int = LENGTH,
    mask: bool = True,
    **options: Any,
) -> None:
    """Registers a model of masked tokens, some sequences of which are padded."""

    def make() -> ZooModel:
        inputs = {"input_ids": words(length)}
        if mask:
            kept = torch.ones(BATCH, length, dtype=torch.int64)
            kept[::2, -2:] = 0
            inputs["attention_mask"] = kept
        return ZooModel(_module(config, model, options), inputs, loss)

    FAMILIES[name] = Family(name, "transformers", make)


def _both(name: str, config: str, model: str, **options: Any) -> None:
    """Registers a model with an encoder and a decoder."""

    def make() -> ZooModel:
        inputs = {"input_ids": words(), "decoder_input_ids": words(LENGTH - 2)}
        return ZooModel(_module(config, model, options), inputs)

    FAMILIES[name] = Family(name, "transformers", make)


_decoder("gpt2", "GPT2Config", "GPT2LMHeadModel", **OLD, n_positions=32)
_decoder(
    "gpt-neo",
    "GPTNeoConfig",
    "GPTNeoForCausalLM",
    vocab_size=WORDS,
    hidden_size=16,
    num_layers=2,
    num_heads=4,
    attention_types=[[["global", "local"], 1]],
    window_size=4,
    max_position_embeddings=32,
)
_decoder("gpt-neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", **SIZES)
_decoder("gpt-j", "GPTJConfig", "GPTJForCausalLM", **OLD, n_positions=32, rotary_dim=4)
_decoder(
    "opt",
    "OPTConfig",
    "OPTForCausalLM",
    vocab_size=WORDS,
    hidden_size=16,
    word_embed_proj_dim=16,
    ffn_dim=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
)
_decoder(
    "bloom",
    "BloomConfig",
    "BloomForCausalLM",
    vocab_size=WORDS,
    hidden_size=16,
    n_layer=2,
    n_head=4,
)
_decoder(
    "mpt",
    "MptConfig",
    "MptForCausalLM",
    vocab_size=WORDS,
    d_model=16,
    n_layers=2,
    n_heads=4,
    expansion_ratio=2,
    max_seq_len=32,
)
_decoder(
    "falcon",
    "FalconConfig",
    "FalconForCausalLM",
    vocab_size=WORDS,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
)
_decoder("llama", "LlamaConfig", "LlamaForCausalLM", **GROUPED)
_decoder("mistral", "MistralConfig", "MistralForCausalLM", **GROUPED, sliding_window=4)
_decoder("qwen2", "Qwen2Config", "Qwen2ForCausalLM", **SIZES, num_key_value_heads=2)
_decoder("qwen3", "Qwen3Config", "Qwen3ForCausalLM", **GROUPED)
_decoder("phi", "PhiConfig", "PhiForCausalLM", **SIZES)
_decoder(
    "phi3",
    "Phi3Config",
    "Phi3ForCausalLM",
    **SIZES,
    num_key_value_heads=2,
    pad_token_id=0,
)
_decoder("gemma2", "Gemma2Config", "Gemma2ForCausalLM", **GROUPED, sliding_window=4)
_decoder("gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", **GROUPED, sliding_window=4)
_decoder("olmo2", "Olmo2Config", "Olmo2ForCausalLM", **SIZES)
_decoder("cohere", "CohereConfig", "CohereForCausalLM", **SIZES)
_decoder("granite", "GraniteConfig", "GraniteForCausalLM", **SIZES)
_decoder(
    "starcoder2",
    "Starcoder2Config",
    "Starcoder2ForCausalLM",
    **SIZES,
    num_key_value_heads=2,
)
_decoder("glm4", "Glm4Config", "Glm4ForCausalLM", **GROUPED, pad_token_id=0)
_decoder(
    "mamba",
    "MambaConfig",
    "MambaForCausalLM",
    vocab_size=WORDS,
    hidden_size=16,
    state_size=4,
    num_hidden_layers=2,
    expand=2,
    time_step_rank=2,
)
_decoder(
    "mamba2",
    "Mamba2Config",
    "Mamba2ForCausalLM",
    vocab_size=WORDS,
    hidden_size=16,
    state_size=4,
    num_hidden_layers=2,
    num_heads=4,
    head_dim=8,
    n_groups=2,
    chunk_size=4,
)
_decoder(
    "rwkv",
    "RwkvConfig",
    "RwkvForCausalLM",
    vocab_size=WORDS,
    hidden_size=16,
    num_hidden_layers=2,
    context_length=32,
)

_EXPERTS = GROUPED | dict(moe_intermediate_size=16, num_experts_per_tok=2)
_decoder(
    "mixtral", "MixtralConfig", "MixtralForCausalLM", **GROUPED, num_local_experts=4
)
_decoder(
    "qwen3-moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", **_EXPERTS, num_experts=4
)
_decoder(
    "gpt-oss",
    "GptOssConfig",
    "GptOssForCausalLM",
    **GROUPED,
    num_local_experts=4,
    num_experts_per_tok=2,
)
_decoder(
    "deepseek-v3",
    "DeepseekV3Config",
    "DeepseekV3ForCausalLM",
    **SIZES,
    moe_intermediate_size=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=2,
    topk_group=1,
    first_k_dense_replace=1,
    kv_lora_rank=8,
    q_lora_rank=8,
    qk_nope_head_dim=4,
    qk_rope_head_dim=4,
    v_head_dim=4,
)

_encoder("bert", "BertConfig", "BertForMaskedLM", **SIZES)
_encoder("roberta", "RobertaConfig", "RobertaForMaskedLM", **SIZES)
_encoder("albert", "AlbertConfig", "AlbertForMaskedLM", **SIZES, embedding_size=8)
_encoder(
    "distilbert",
    "DistilBertConfig",
    "DistilBertForMaskedLM",
    vocab_size=WORDS,
    dim=16,
    hidden_dim=32,
    n_layers=2,
    n_heads=4,
    max_position_embeddings=32,
)
_encoder("electra", "ElectraConfig", "ElectraForMaskedLM", **SIZES, embedding_size=8)
_encoder(
    "deberta-v2",
    "DebertaV2Config",
    "DebertaV2ForMaskedLM",
    **SIZES,
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
    position_buckets=4,
    max_relative_positions=8,
)
_encoder("mpnet", "MPNetConfig", "MPNetForMaskedLM", **SIZES)
_encoder(
    "modernbert",
    "ModernBertConfig",
    "ModernBertForMaskedLM",
    **SIZES,
    **UNPADDED,
    local_attention=4,
    global_attn_every_n_layers=2,
    cls_token_id=1,
    sep_token_id=2,
)
_encoder(
    "xlnet",
    "XLNetConfig",
    "XLNetLMHeadModel",
    vocab_size=WORDS,
    d_model=16,
    n_layer=2,
    n_head=4,
    d_inner=32,
)
_encoder("fnet", "FNetConfig", "FNetForMaskedLM", mask=False, **SIZES)
_encoder(
    "squeezebert",
    "SqueezeBertConfig",
    "SqueezeBertForMaskedLM",
    **SIZES,
    embedding_size=16,
    q_groups=2,
    k_groups=2,
    v_groups=2,
    intermediate_groups=2,
    output_groups=2,
)
_encoder(
    "convbert",
    "ConvBertConfig",
    "ConvBertForMaskedLM",
    **SIZES,
    embedding_size=8,
    head_ratio=2,
    conv_kernel_size=3,
)
_encoder(
    "esm",
    "EsmConfig",
    "EsmForMaskedLM",
    **SIZES,
    pad_token_id=0,
    mask_token_id=1,
    position_embedding_type="rotary",
)
_encoder("roformer", "RoFormerConfig", "RoFormerForMaskedLM", **SIZES, embedding_size=8)

_both("t5", "T5Config", "T5ForConditionalGeneration", **T5)
_both("mt5", "MT5Config", "MT5ForConditionalGeneration", **T5)
_both("bart", "BartConfig", "BartForConditionalGeneration", **CODED)
_both("mbart", "MBartConfig", "MBartForConditionalGeneration", **CODED)
_both("pegasus", "PegasusConfig", "PegasusForConditionalGeneration", **CODED)
_both(
    "prophetnet",
    "ProphetNetConfig",
    "ProphetNetForConditionalGeneration",
    **UNPADDED,
    vocab_size=WORDS,
    hidden_size=16,
    encoder_ffn_dim=32,
    num_encoder_layers=2,
    num_encoder_attention_heads=4,
    decoder_ffn_dim=32,
    num_decoder_layers=2,
    num_decoder_attention_heads=4,
    max_position_embeddings=32,
    ngram=2,
    num_buckets=4,
    relative_max_distance=8,
    decoder_start_token_id=1,
)
