"""
Packages with caches of 8 bits on gloo processes: greedy tokens equal those of the
sequential program, and those of transformers with a cache that rounds alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.generation import (
    PROMPTS,
    SIZES,
    assert_generates,
    distributed,
    generated,
    quantized_program,
    tiny_model,
)
from support.thoroughness import sampled
from transformers.cache_utils import DynamicCache
from xdsl.dialects.builtin import ModuleOp

from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.lowering.torch_package import write_package
from distir.program import Program
from distir.program.entries import one_entry
from distir.tools.cli import main
from distir.tools.files import read_program

LARGEST = {"int8": 127.0, "fp8": 448.0}
ENTRIES = ("prefill", "decode")


def built(kind: str, folder: Path) -> ModuleOp:
    """A built LLaMA with caches in the format `kind`."""
    path = folder / "llama.mlir"
    sizes = "--layers 1 --d-model 32 --heads 4 --kv-heads 2 --ffn 64 --vocab 96"
    serve = (
        f"--serve --batch {SIZES.batch} --cache {SIZES.cache} --prompt {SIZES.prompt}"
    )
    command = ["build", "llama", *sizes.split(), *serve.split(), "--cache-dtype", kind]
    assert main([*command, "-o", str(path)]) == 0
    return read_program(path)


def values_of(module: ModuleOp) -> dict[str, Any]:
    """Values of all arguments by name; those of parameters are large enough for tokens to vary."""
    decode = one_entry(module, "decode")
    found: dict[str, Any] = {}
    pairs = zip(Program(decode).arguments, random_arguments(decode, 0), strict=True)
    for argument, value in pairs:
        found[argument.name] = value * 8 if argument.role == "parameter" else value
    return found


def tokens_of_reference(
    module: ModuleOp, values: Mapping[str, Any], new: int
) -> list[list[int]]:
    """The greedy tokens of a program with two entries, by the reference interpreter."""
    held = dict(values)
    programs = {name: one_entry(module, name) for name in ENTRIES}

    def run(name: str, **inputs: Any) -> Any:
        program = Program(programs[name])
        arguments = [(held | inputs)[a.name] for a in program.arguments]
        results = run_program(programs[name], arguments)
        for result, argument in program.updates.items():
            held[program.arguments[argument].name] = results[result]
        (logits,) = (r for i, r in enumerate(results) if i not in program.updates)
        return logits.reshape(len(PROMPTS), -1).argmax(-1)

    counts = np.array([len(prompt) for prompt in PROMPTS])
    padded = [[0] * (SIZES.prompt - len(p)) + p for p in PROMPTS]
    last = run("prefill", input_ids=np.array(padded), padding=SIZES.prompt - counts)
    found = [[*prompt] for prompt in PROMPTS]
    for step in range(new):
        for row, token in zip(found, last, strict=True):
            row.append(int(token))
        if step < new - 1:
            last = run("decode", input_ids=last[:, None], positions=counts + step)
    return found


@pytest.mark.parametrize("kind", sampled(["int8", "fp8"], 2))
def test_tokens_equal_those_of_the_sequential_program(
    kind: str, tmp_path: Path
) -> None:
    program = built(kind, tmp_path)
    values, new = values_of(program), 4
    wanted = tokens_of_reference(program, values, new)
    assert len({token for tokens in wanted for token in tokens[-new:]}) > 3
    weights = {
        a.name: values[a.name]
        for a in Program(one_entry(program, "decode")).arguments
        if a.role in ("parameter", "constant")
    }
    folder = write_package(distributed(program, t=2), tmp_path / "package")
    assert generated(folder, weights, 2, new=new) == wanted


class RoundedCache(DynamicCache):
    """A cache of transformers that rounds keys and values to 8 bits and back."""

    def __init__(self, config: Any, kind: str):
        super().__init__(config=config)
        self.kind = kind

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any):
        rounded = (self.rounded(x) for x in (key_states, value_states))
        return super().update(*rounded, *args, **kwargs)

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        largest = LARGEST[self.kind]
        scale = x.abs().amax(-1, keepdim=True) / largest
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        numbers = (x / scale).clamp(-largest, largest)
        if self.kind == "int8":
            return numbers.round() * scale
        return numbers.to(torch.float8_e4m3fn).to(x.dtype) * scale


CASES: list[tuple[str, str, dict[str, int]]] = [
    ("llama", "int8", {"t": 2}),
    ("llama", "fp8", {"d": 2, "t": 2}),
    ("qwen3", "fp8", {"p": 2}),
    ("mistral", "int8", {"t": 2}),
    ("mixtral", "fp8", {"e": 2}),
    ("gpt2", "int8", {"p": 2}),
    ("deepseek_v3", "fp8", {"t": 2}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "format", "plan"), CASES, ids=str)
def test_tokens_equal_those_of_a_rounding_cache(
    kind: str, format: str, plan: dict[str, int], tmp_path: Path
) -> None:
    model, new = tiny_model(kind), 16
    program, _ = quantized_program(model, None, cache=format)
    wanted = [
        model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=new,
            do_sample=False,
            past_key_values=RoundedCache(model.config, format),
        )[0].tolist()
        for prompt in PROMPTS
    ]
    assert_generates(wanted, program, plan, tmp_path, new)
