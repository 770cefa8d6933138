"""A generated training step calls no more of PyTorch's operators than one by hand."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import torch
from support.aten_calls import AtenCalls
from transformers import LlamaConfig, LlamaForCausalLM
from xdsl.context import Context

from distir.frontends.torch.importer import import_torch
from distir.launch.timing_rank import TimedBody
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.passes.raise_patterns import RaisePatternsPass

MOST = 574
"""What eager PyTorch with fused AdamW made of this model when it was first counted."""


NUMBERS = count()


def logits_of(found: Any) -> torch.Tensor:
    return found if isinstance(found, torch.Tensor) else found.logits


def by_hand(
    model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor
) -> Counter[str]:
    """The calls of a step in eager PyTorch, after one that makes the optimizer's states."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    calls = AtenCalls()

    def step() -> None:
        logits = logits_of(model(inputs))
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with calls:
        step()
    return calls.counts


def generated(
    model: torch.nn.Module, inputs: torch.Tensor, folder: Path
) -> Counter[str]:
    """The calls of a step of the package."""
    module, context = import_torch(model, (inputs,)).module, Context()
    for each in (
        FoldShapesPass(),
        RaisePatternsPass(),
        OutlineRepeatsPass(),
        DifferentiatePass(optimizer="adamw"),
    ):
        each.apply(context, module)
    write_package(module, folder)
    job = {"folder": str(folder), "below": 2, "footprint": 0}
    # A package of another number is imported by another name.
    timed = TimedBody(job, next(NUMBERS), 0, torch.device("cpu"))
    timed.connect({})
    (arguments,) = timed.arguments()
    with torch.no_grad(), AtenCalls() as calls:
        timed.body.main(*arguments)
    return calls.counts


def test_a_step_of_llama(tmp_path: Path) -> None:
    """Attention and norms run their forward once; nothing is padded."""
    model = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            hidden_size=64,
            intermediate_size=172,
            vocab_size=64,
            use_cache=False,
        )
    ).eval()
    ids = torch.randint(0, 64, (2, 16))
    mine = generated(model, ids, tmp_path)
    theirs = by_hand(model, ids, torch.randint(0, 64, (2, 16)))
    assert mine.total() <= min(MOST, theirs.total())
    for kernel in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ):
        assert mine[kernel] == theirs[kernel] == 4
    assert mine["rsqrt_"] == 9  # a norm's statistic, once
    assert not mine["pad"] and not mine["constant_pad_nd"]


def test_a_step_of_a_convolutional_network(tmp_path: Path) -> None:
    """Each layer's gradients are one call, as in PyTorch."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 4 * 4, 10),
    ).eval()
    images = torch.randn(4, 3, 16, 16)
    mine = generated(model, images, tmp_path)
    theirs = by_hand(model, images, torch.randint(0, 10, (4,)))
    for name in ("convolution_backward", "threshold_backward"):
        assert mine[name] == theirs[name] == 2
    assert mine["native_batch_norm_backward"] == theirs["native_batch_norm_backward"]
    assert not mine["where"] and not mine["sub"]  # no gradient is written out
