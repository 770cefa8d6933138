"""
Small models from Hugging Face configs with fixed weights, their inputs and outputs, and
their ONNX files by both of PyTorch's exporters.

They have batch 4, sequence 8, vocabulary 128 and two layers: a case costs a second or two.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from xdsl.context import Context

from distir.frontends.imported_model import ImportedModel
from distir.frontends.torch.export.exporter import Exporter
from distir.frontends.torch.importer import export_onnx, import_exported
from distir.passes.fold_shapes import FoldShapesPass
from support.thoroughness import chosen

BATCH, SEQ, VOCAB = 4, 8, 128
EXPORTERS: tuple[Exporter, ...] = ("dynamo", "torchscript")


@dataclass(frozen=True)
class Model:
    """
    A model with example inputs and outputs, by the names of the module's arguments and
    results; the outputs are those of evaluation, also of a module in `training` mode.
    """

    name: str
    module: nn.Module
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]

    @property
    def training(self) -> bool:
        return self.module.training

    @property
    def numpy_inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: value.numpy() for name, value in self.inputs.items()}

    @property
    def numpy_outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: value.numpy() for name, value in self.outputs.items()}


class Mlp(nn.Module):
    """Three layers with ReLU, 16 -> 32 -> 32 -> 8."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.layers(input)


class DeepMlp(Mlp):
    """Eight layers of width 16 with ReLU, for pipelines of up to eight stages."""

    def __init__(self) -> None:
        super().__init__()
        layers = [m for _ in range(8) for m in (nn.Linear(16, 16), nn.ReLU())]
        self.layers = nn.Sequential(*layers[:-1])


class Unet(nn.Module):
    """Four levels down and up again, each with a skip connection to the way up."""

    def __init__(self) -> None:
        super().__init__()
        widths = [16, 24, 32, 40, 48]
        self.down = nn.ModuleList(nn.Linear(*w) for w in pairwise(widths))
        self.up = nn.ModuleList(nn.Linear(b, a) for a, b in pairwise(widths))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        hidden, skips = input, list[torch.Tensor]()
        for layer in self.down:
            skips.append(hidden)
            hidden = torch.relu(layer(hidden))
        for layer in reversed(self.up):
            hidden = torch.tanh(layer(hidden)) + skips.pop()
        return hidden


class _Attention(nn.Module):
    """Attention with one head; the keys and values are computed from `memory`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        scores = self.query(hidden) @ self.key(memory).transpose(1, 2)
        return hidden + self.out(torch.softmax(scores / 4, -1) @ self.value(memory))


class EncoderDecoder(nn.Module):
    """Attention as in T5: every layer of the decoder looks at the encoder's output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(_Attention(16) for _ in range(4))
        self.decoder = nn.ModuleList(_Attention(16) for _ in range(4))

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory, hidden = input, target
        for layer in self.encoder:
            memory = layer(memory, memory)
        for layer in self.decoder:
            hidden = layer(hidden, memory)
        return hidden


class ResidualBlock(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.bn1(self.conv1(input)))
        return torch.relu(input + self.bn2(self.conv2(hidden)))


class Resnet(nn.Module):
    """
    Two residual blocks of 8 channels on images of 16 x 16, 8 classes. The bias of the
    first convolution has no gradient where statistics of the batch follow.
    """

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=bias)
        self.bn = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.blocks = nn.Sequential(ResidualBlock(8), ResidualBlock(8))
        self.head = nn.Linear(8, 8)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.pool(torch.relu(self.bn(self.stem(input)))))
        return self.head(hidden.mean((2, 3)))


class _Up(nn.Module):
    """
    Doubles the size of an image and combines it with the image that was saved on that
    level.
    """

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1)

    def forward(self, image: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        n, c, h, w = image.shape
        pixels = image[:, :, :, None, :, None].expand(n, c, h, 2, w, 2)
        image = pixels.reshape(n, c, 2 * h, 2 * w)
        return torch.relu(self.conv(torch.cat([image, skip], 1)))


class ConvolutionalUnet(nn.Module):
    """A U-Net with two steps down and two up."""

    def __init__(self) -> None:
        super().__init__()
        self.down0 = nn.Conv2d(3, 4, 3, padding=1)
        self.down1 = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm([8, 2, 2])
        self.up1 = _Up(16, 4)
        self.up0 = _Up(8, 4)
        self.head = nn.Conv2d(4, 3, 1)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        top = torch.relu(self.down0(input))
        low = torch.relu(self.down1(top))
        hidden = self.norm(torch.relu(self.middle(low)))
        return self.head(self.up0(self.up1(hidden, low), top))


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCAB,
            d_model=16,
            d_kv=4,
            d_ff=32,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            use_cache=False,
            dropout_rate=0.0,
        )
    )


def _gpt2(heads: int, width: int, vocab: int = VOCAB, layers: int = 2) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=layers,
            n_head=heads,
            n_embd=width,
            vocab_size=vocab,
            n_positions=16,
            use_cache=False,
        )
    )


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            num_hidden_layers=2,
            num_attention_heads=4,
            hidden_size=32,
            intermediate_size=64,
            vocab_size=VOCAB,
            max_position_embeddings=16,
        )
    )


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=4,
            hidden_size=64,
            intermediate_size=96,
            vocab_size=VOCAB,
            max_position_embeddings=16,
            use_cache=False,
        )
    )


def _perturb(module: nn.Module) -> None:
    """
    Changes biases and norms, which start as zeros and ones; with equal values, a mix-up of
    two parameters or a bias that is added twice would not show.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))


_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "mlp": Mlp,
    "mlp_deep": DeepMlp,
    "unet_deep": Unet,
    "encoder_decoder_deep": EncoderDecoder,
    "gpt2": lambda: _gpt2(4, 32),
    "gpt2_shallow": lambda: _gpt2(4, 32, layers=1),
    "gpt2_deep": lambda: _gpt2(4, 32, layers=8),
    "gpt2_causal_deep": lambda: _gpt2(4, 32, layers=4),
    "gpt2_12_heads": lambda: _gpt2(12, 48),
    "gpt2_odd_vocab": lambda: _gpt2(4, 32, 127),
    "bert": _bert,
    "llama": _llama,
    "resnet": Resnet,
    "unet": ConvolutionalUnet,
    "t5": _t5,
    "resnet_train": lambda: Resnet(bias=False),
    "gpt2_train": lambda: _gpt2(4, 32),
}
WITH_MSE = ("mlp", "mlp_deep", "unet_deep", "encoder_decoder_deep")
"""The models that are trained on numbers instead of classes."""
MODELS = ("mlp", "gpt2", "bert", "llama")
"""The models of the acceptance tests; the others are variants for single cases."""
QUICK = [*((name, "dynamo") for name in MODELS), ("gpt2", "torchscript")]
EXPORTS = chosen(product(MODELS, EXPORTERS), QUICK)
"""
The models by both exporters. What the older one writes is read in one way for all models:
`make test` tries one of them.
"""


@functools.cache
def model(name: str) -> Model:
    """
    Returns the model with that name, in evaluation mode unless it is called `*_train`.
    """
    torch.manual_seed(0)
    module = _BUILDERS[name]().eval()
    _perturb(module)
    # Enough for the micro-batches of a pipeline.
    batch = 2 * BATCH if name.endswith("_deep") else BATCH
    if name in ("mlp", "mlp_deep", "unet_deep"):
        inputs = {"input": torch.randn(batch, 16)}
    elif name == "encoder_decoder_deep":
        inputs = {n: torch.randn(batch, SEQ, 16) for n in ("input", "target")}
    elif name == "unet":
        inputs = {"input": torch.randn(batch, 3, 8, 8)}
    elif name == "t5":
        inputs = {
            "input_ids": torch.randint(0, 127, (batch, SEQ)),
            "attention_mask": torch.ones(batch, SEQ, dtype=torch.int64),
            "decoder_input_ids": torch.randint(0, 127, (batch, SEQ - 2)),
        }
    elif name.startswith("resnet"):
        inputs = {"input": torch.randn(batch, 3, 16, 16)}
    else:
        inputs = {
            "input_ids": torch.randint(0, 127, (batch, SEQ)),
            "attention_mask": torch.ones(batch, SEQ, dtype=torch.int64),
        }
        if name == "gpt2_deep":  # sequences of 1 to 8 tokens
            lengths = torch.arange(1, batch + 1)[:, None]
            inputs["attention_mask"] = (torch.arange(SEQ) < lengths).long()
        if name == "gpt2_causal_deep":
            del inputs["attention_mask"]
    with torch.no_grad():
        output = module(**inputs)
    outputs = {"output": output} if isinstance(output, torch.Tensor) else dict(output)
    return Model(name, module.train(name.endswith("_train")), inputs, outputs)


FOLDER = "DISTIR_TEST_MODELS"
"""The environment variable that names the folder of exported models."""


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="distir-test-models-")


@functools.cache
def onnx_file(name: str, exporter: Exporter = "dynamo") -> Path:
    """
    Returns the ONNX file of a model, which is exported once for all processes that test. Do
    not write to its folder.
    """
    folder = Path(os.environ.get(FOLDER) or _temporary_folder().name)
    place = folder / f"{name}.{exporter}"
    if not place.exists():
        case, making = model(name), Path(tempfile.mkdtemp(dir=folder))
        export_onnx(
            case.module,
            (),
            making / "model.onnx",
            case.inputs,
            exporter=exporter,
            training=case.training,
        )
        # Another process may have been faster.
        with contextlib.suppress(OSError):
            making.rename(place)
    return place / "model.onnx"


@functools.cache
def imported(name: str, exporter: Exporter = "dynamo") -> ImportedModel:
    """Returns the program of a model, without computations of shapes. Do not change it."""
    found = import_exported(model(name).module, onnx_file(name, exporter))
    FoldShapesPass().apply(Context(), found.module)
    return found
