"""Modules on the meta device or under fake tensors: the same programs, without weights."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest
import torch
import transformers
from support.thoroughness import IS_THOROUGH, each_once, sampled
from torch import nn

from distir.errors import DistIRError
from distir.frontends.torch.importer import export_onnx, import_torch
from distir.frontends.torch.sources import (
    _parameters_on_meta,  # pyright: ignore[reportPrivateUsage]
)

IDS = torch.zeros(2, 16, dtype=torch.int64)


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=64,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def _norms() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.1))


class _T5(nn.Module):
    """T5, whose attention adds a learned bias, with the same words on both sides."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.T5Config(
            num_layers=1, num_heads=2, d_model=16, d_kv=8, d_ff=32, vocab_size=64
        )
        config.decoder_start_token_id = 0
        self.model = transformers.T5ForConditionalGeneration(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, decoder_input_ids=ids, use_cache=False).logits


def _swin() -> nn.Module:
    """Swin, which pools values of which the channels are stored last."""
    config = transformers.SwinConfig(
        embed_dim=8, depths=[1, 1], num_heads=[1, 2], image_size=56
    )
    return transformers.SwinForImageClassification(config)


EXAMPLES = {
    _llama: IDS,
    _norms: torch.ones(2, 16),
    _T5: IDS,
    _swin: torch.ones(2, 3, 56, 56),
}


@pytest.mark.parametrize(("training", "make"), each_once([False, True], [*EXAMPLES]))
def test_the_same_program(training, make):
    example = EXAMPLES[make]
    real = make().train(training)
    with torch.device("meta"):
        module = make().train(training)
    expected = import_torch(real, (example,), training=training)
    held = dict(module.named_parameters())
    for own in (example, example.to("meta")) if IS_THOROUGH else (example.to("meta"),):
        imported = import_torch(module, (own,), training=training)
        assert str(imported.module) == str(expected.module)
        # What no checkpoint has the model computes; it has the right values.
        assert set(imported.weights) | set(imported.valueless) == set(expected.weights)
        for name, value in imported.weights.items():
            np.testing.assert_array_equal(value, expected.weights[name])
    assert all(held[n] is p and p.is_meta for n, p in module.named_parameters())
    assert all(buffer.is_meta for buffer in module.buffers())


def test_frequencies_of_rotary_embeddings_have_values():
    with torch.device("meta"):
        module = _llama()
    imported = import_torch(module, (IDS,))
    assert list(imported.weights) == ["model.rotary_emb.inv_freq"]


class _Mixed(transformers.LlamaForCausalLM):
    """With a table of which nobody but its maker knows the values."""

    def __init__(self, config: transformers.LlamaConfig):
        super().__init__(config)
        self.register_buffer("table", torch.arange(16.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(ids).logits * self.table[:, None]


def test_buffers_that_nothing_computes_and_weights_that_are_there():
    """Real weights are not drawn anew to find a buffer, and other buffers have no value."""
    with torch.device("meta"):
        module = _Mixed(_llama().config)
    module.model.norm.weight = nn.Parameter(torch.full((32,), 3.0))
    imported = import_torch(module, (IDS,))
    assert "table" in imported.valueless
    assert bool((module.model.norm.weight == 3.0).all())
    np.testing.assert_array_equal(imported.weights["model.norm.weight"], 3.0)
    assert "model.rotary_emb.inv_freq" in imported.weights


def test_what_needs_values(tmp_path):
    with torch.device("meta"):
        module = nn.Linear(2, 2)
    x = torch.ones(2, 2)
    with pytest.raises(DistIRError, match=r"needs their values; import it with"):
        import_torch(module, (x,), exporter="torchscript")
    with pytest.raises(
        DistIRError, match=re.escape("tensor 'weight' has no value (it is on the meta")
    ):
        export_onnx(module, (x,), tmp_path / "m.onnx")


def test_saved_without_values(tmp_path):
    with torch.device("meta"):
        module = nn.Linear(2, 2)
    imported = import_torch(module, (torch.ones(2, 2),))
    assert imported.valueless == ["weight", "bias"]
    imported.save(tmp_path / "m.mlir")
    assert [path.name for path in tmp_path.iterdir()] == ["m.mlir"]
    assert "dist.weights" not in (tmp_path / "m.mlir").read_text()


def test_weights_are_copies_unless_told_otherwise():
    module = nn.Linear(64, 64)
    copied, shared = (
        import_torch(module, (torch.ones(2, 64),), copy=c) for c in (True, False)
    )
    with torch.no_grad():
        module.weight.zero_()
    assert copied.weights["weight"].any()
    assert not shared.weights["weight"].any()


@pytest.mark.parametrize("is_inside", sampled([True, False], 2))
def test_modules_under_fake_tensors(is_inside):
    """As on the meta device, whether the mode that made the module is on or not."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    expected = import_torch(_llama(), (IDS,))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        module = _llama()
        inputs = (mode.from_tensor(IDS),)
    with mode if is_inside else contextlib.nullcontext():
        imported = import_torch(module, inputs)
    assert str(imported.module) == str(expected.module)
    assert list(imported.weights) == ["model.rotary_emb.inv_freq"]
    for name, value in imported.weights.items():
        np.testing.assert_array_equal(value, expected.weights[name])
    assert set(imported.weights) | set(imported.valueless) == set(expected.weights)
    assert all(hasattr(p, "fake_mode") for p in module.parameters())
    with pytest.raises(DistIRError, match=r"needs their values; import it with"):
        import_torch(module, inputs, exporter="torchscript")


def test_large_parameters_never_take_memory() -> None:
    with _parameters_on_meta():
        layer = torch.nn.Linear(4096, 4096)
        assert torch.zeros(1 << 22).is_meta
        assert torch.empty(2048, 2048).is_meta
        assert torch.full((3,), 2.0).tolist() == [2.0, 2.0, 2.0]
        assert torch.zeros(1 << 22, device="cpu").device.type == "cpu"
    assert layer.weight.is_meta
    assert not torch.zeros(1 << 22).is_meta
