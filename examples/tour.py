"""
Writes the files that the README's tour reads into a folder, which is made if needed:
`python examples/tour.py tour`; without one, into the current folder. They are `gpt2.onnx` (a small
GPT-2 with random weights), `model.py` (a function that returns a module and its inputs),
`config.json` (a small LLaMA), `inputs.npz` and `data.py` (what is trained on).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, SEQUENCE, VOCABULARY = 8, 64, 512

MODEL = '''"""A model for `distir import model.py:make`."""

import torch


def make():
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)
    )
    return module, (torch.randn(8, 64),)
'''

DATA = f'''"""Sequences of random words for `distir run --data data.py:dataset`."""

import torch


class Sequences(torch.utils.data.Dataset):
    """Sequences, each of which repeats one word, with the next words as labels."""

    def __init__(self, count, seed):
        self.words = torch.randint({VOCABULARY}, (count,), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        words = self.words[index].repeat({SEQUENCE})
        return {{"input_ids": words, "labels": words}}


def dataset():
    return Sequences(1024, 0)


def held_out():
    return Sequences(64, 1)
'''

CONFIGURATION = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


class Logits(torch.nn.Module):
    """GPT-2 with logits as its only output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=256,
            n_layer=4,
            n_head=8,
            n_positions=SEQUENCE,
            use_cache=False,
        )
        self.gpt2 = GPT2LMHeadModel(config).eval()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.gpt2(input_ids=input_ids).logits


def main() -> None:
    """Writes all files to the folder that the command line names."""
    folder = Path(*sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    words = torch.randint(VOCABULARY, (BATCH, SEQUENCE))
    torch.onnx.export(
        Logits().eval(),
        (words,),
        "gpt2.onnx",
        input_names=["input_ids"],
        output_names=["logits"],
        dynamo=True,
        optimize=False,
        verbose=False,
    )
    np.savez("inputs.npz", input_ids=words.numpy())
    Path("model.py").write_text(MODEL)
    Path("data.py").write_text(DATA)
    Path("config.json").write_text(json.dumps(CONFIGURATION, indent=2) + "\n")
    print(f"wrote gpt2.onnx, model.py, config.json, inputs.npz and data.py to {folder}")


if __name__ == "__main__":
    main()
