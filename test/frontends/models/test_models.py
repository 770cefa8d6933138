"""Models by name: they are the originals, in names and in what they compute, and train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from support.programs import inferred_types, ops_of, round_trip
from support.torch_models import DenoisingUnet, Vgg19, WideResnet
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.frontends.models import SIZES
from distir.frontends.models.bert import build_bert
from distir.frontends.models.llama import build_llama
from distir.frontends.models.resnet import build_resnet, build_wide_resnet
from distir.frontends.models.t5 import build_t5
from distir.frontends.models.unet import build_unet
from distir.frontends.models.vgg import build_vgg
from distir.frontends.models.vit import build_vit
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_names, entry_function

Inputs = Mapping[str, torch.Tensor]


def arguments_of(module: ModuleOp, original: nn.Module, inputs: Inputs) -> list[Any]:
    """The inputs and the original's weights; of its tables of positions the first rows."""
    weights = {**original.state_dict(), **inputs}
    entry, found = entry_function(module), list[Any]()
    for name, arg in zip(argument_names(entry), entry.body.block.args, strict=True):
        shape = arg.type.get_shape()
        value = weights[name].detach().numpy()
        kept = value[tuple(slice(size) for size in shape)]
        assert kept.shape == tuple(shape), name
        found.append(kept)
    return found


def check_types(module: ModuleOp) -> None:
    """Types are what ONNX infers; it infers no shape of a group norm."""
    round_trip(module)
    for op in ops_of(module):
        if op.name == "onnx.GroupNormalization":
            assert op.results[0].type == op.operands[0].type
        else:
            assert inferred_types(op) == [r.type for r in op.results], str(op)


def check(module: ModuleOp, original: nn.Module, inputs: Inputs) -> None:
    check_types(module)
    original.eval()
    with torch.no_grad():
        expected = original(**inputs)
    [result] = run_program(module, arguments_of(module, original, inputs))
    expected = getattr(expected, "logits", expected)
    np.testing.assert_allclose(result, expected.numpy(), atol=2e-5, rtol=1e-4)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 64, shape)


@pytest.mark.parametrize("tied", [False, True])
def test_llama_is_hugging_faces(tied: bool):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=64,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    module = build_llama(2, 32, 4, 64, 2, 8, kv_heads=2, ffn=48, tied=tied)
    check(module, LlamaForCausalLM(config), {"input_ids": tokens(2, 8)})


@pytest.mark.parametrize("fused", [True, False])
def test_bert_is_hugging_faces(fused: bool):
    """With attention as one op, and written out with a narrower MLP."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128 if fused else 48,
        vocab_size=64,
    )
    ffn = None if fused else 48
    module = build_bert(2, 32, 4, 64, 2, 8, ffn=ffn, fused_attention=fused)
    attention = {op.name for op in module.walk()} & {"onnx.Attention", "onnx.Softmax"}
    assert attention == {"onnx.Attention" if fused else "onnx.Softmax"}
    check(module, BertForMaskedLM(config), {"input_ids": tokens(2, 8)})


@pytest.mark.parametrize("head_dim", [None, 12])
def test_t5_is_hugging_faces(head_dim: int | None):
    """With distances of all kinds, a target of another length, and wider heads."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=32,
        d_kv=head_dim or 8,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        vocab_size=64,
    )
    module = build_t5(2, 32, 4, 64, 1, 140, target_seq=36, ffn=48, head_dim=head_dim)
    inputs = {"input_ids": tokens(1, 140), "decoder_input_ids": tokens(1, 36)}
    check(module, T5ForConditionalGeneration(config), inputs)


def test_vit_is_hugging_faces():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        num_labels=10,
    )
    module = build_vit(2, 32, 2, 10, 2, 32, 8)
    original = ViTForImageClassification(config)
    check(module, original, {"pixel_values": torch.randn(2, 3, 32, 32)})


@pytest.mark.parametrize("blocks", [None, (1, 2, 1, 1)])
def test_wide_resnet(blocks: tuple[int, ...] | None):
    wide_first = blocks is not None
    if blocks is None:
        blocks = (3, 4, 6, 3)
        module = build_wide_resnet(50, 4, 2, 32, 7, width_factor=2)
    else:
        module = build_resnet(blocks, 4, 2, 32, 7, width_factor=2, wide_first=True)
    original = WideResnet(blocks, 4, 2, 7, first=2 if wide_first else 1)
    for name, buffer in original.named_buffers():
        if name.endswith("running_var"):
            nn.init.uniform_(buffer, 0.5, 2)
    check(module, original, {"input": torch.randn(2, 3, 32, 32)})


def test_vgg():
    module = build_vgg(1, 32, 7, width=16)
    check(module, Vgg19(7, 16), {"input": torch.randn(1, 3, 32, 32)})


def test_unet():
    module = build_unet(2, 8, 4, multipliers=(1, 2), blocks=1, attention_at=4, groups=2)
    original = DenoisingUnet(4, (1, 2), 1, 4, 2)
    inputs = {"sample": torch.randn(2, 3, 8, 8), "timestep": torch.tensor([3, 900])}
    check(module, original, inputs)


def test_resnet_trains_with_the_batchs_statistics():
    """The loss is that of PyTorch in training mode, and so are the running statistics."""
    module = build_wide_resnet(50, 2, 4, 64, 5, trains=True)
    DifferentiatePass(loss="cross_entropy", optimizer="sgd").apply(Context(), module)
    original = WideResnet((3, 4, 6, 3), 2, 1, 5).train()
    inputs, labels = torch.randn(4, 3, 64, 64), torch.tensor([0, 1, 2, 3])
    given: dict[str, torch.Tensor] = {"input": inputs, "labels": labels}
    given["optimizer.step"] = torch.tensor(0)
    entry = entry_function(module)
    arguments = arguments_of(module, original, given)
    results = run_program(module, arguments)
    loss = nn.functional.cross_entropy(original(inputs), labels)
    np.testing.assert_allclose(results[0], loss.item(), rtol=1e-4)
    assert entry.res_attrs is not None
    names = [a.data["dist.name"].data for a in entry.res_attrs]
    [mean] = [r for n, r in zip(names, results, strict=True) if n == "bn1.running_mean"]
    expected = original.state_dict()["bn1.running_mean"].numpy()
    np.testing.assert_allclose(mean, expected, rtol=1e-4, atol=1e-6)


def parameters_of(module: ModuleOp) -> int:
    entry = entry_function(module)
    assert entry.arg_attrs is not None
    return sum(
        int(np.prod(arg.type.get_shape()))
        for arg, attributes in zip(entry.body.block.args, entry.arg_attrs, strict=True)
        if attributes.data["dist.role"].data == "parameter"
    )


BILLIONS: list[tuple[Callable[..., ModuleOp], str, str, float, dict[str, int]]] = [
    (build_llama, "llama", "8B", 8.03, dict(seq=16)),
    (build_llama, "llama", "70B", 70.55, dict(seq=16)),
    (build_llama, "llama", "405B", 405.85, dict(seq=16)),
    (build_bert, "bert", "base", 0.1095, {}),
    (build_t5, "t5", "large", 0.738, {}),
    (build_vit, "vit", "huge", 0.632, {}),
    (build_wide_resnet, "wide-resnet", "50", 0.02556, {}),
    (build_wide_resnet, "wide-resnet", "101", 0.04455, {}),
    (build_vgg, "vgg", "19-million", 4.236, {}),
    (build_unet, "unet", "ddpm-cifar10", 0.0357, {}),
]
"""A published size's parameters, in billions."""


@pytest.mark.parametrize(
    "build, model, size, billions, options",
    BILLIONS,
    ids=[f"{c[1]}-{c[2]}" for c in BILLIONS],
)
def test_published_sizes(
    build: Callable[..., ModuleOp],
    model: str,
    size: str,
    billions: float,
    options: dict[str, int],
):
    module = build(batch=1, **options, **SIZES[model][size])
    assert parameters_of(module) / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_in_16_bits(dtype: str):
    """Angles of positions are computed in single precision, and all else is not."""
    for module in (
        build_llama(1, 16, 2, 64, 2, 8, dtype),
        build_unet(1, 8, 4, dtype, multipliers=(1,), blocks=1, groups=2),
        build_t5(1, 16, 2, 64, 1, 8, dtype),
    ):
        check_types(module)


def test_sizes_that_do_not_go_together():
    with pytest.raises(DistIRError, match="heads must divide the width"):
        build_llama(1, 32, 4, 64, 1, 8, kv_heads=3)
    with pytest.raises(DistIRError, match="5 heads do not divide the model width 32"):
        build_bert(1, 32, 5, 64, 1, 8)
    with pytest.raises(DistIRError, match="patches of 7 pixels do not divide"):
        build_vit(1, 32, 2, 10, 1, 32, 7)
    with pytest.raises(DistIRError, match="no number of layers '18'"):
        build_wide_resnet(18, 4, 1)
    with pytest.raises(DistIRError, match="cannot be halved 5 times"):
        build_vgg(1, 100)
    with pytest.raises(DistIRError, match="a multiple of 8 pixels"):
        build_unet(1, 12)
