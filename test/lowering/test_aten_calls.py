"""A generated training step calls no more of PyTorch's operators than one by hand."""

from __future__ import annotations

from pathlib import Path

import torch
from support.aten_calls import AtenCalls
from transformers import LlamaConfig, LlamaForCausalLM
from xdsl.context import Context

from distir.frontends.torch_importer import import_torch
from distir.lowering.timing_rank import TimedBody
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.passes.fold_shapes import FoldShapesPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.passes.raise_patterns import RaisePatternsPass

MOST = 574
"""What eager PyTorch with fused AdamW made of this model when it was first counted."""


def by_hand(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> int:
    """The calls of a step in eager PyTorch, after one that makes the optimizer's states."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    calls = AtenCalls()

    def step() -> None:
        logits = model(ids).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with calls:
        step()
    return calls.counts.total()


def generated(model: LlamaForCausalLM, ids: torch.Tensor, folder: Path) -> int:
    """The calls of a step of the package."""
    module, context = import_torch(model, (ids,)).module, Context()
    for each in (
        FoldShapesPass(),
        RaisePatternsPass(),
        OutlineRepeatsPass(),
        DifferentiatePass(optimizer="adamw"),
    ):
        each.apply(context, module)
    write_package(module, folder)
    job = {"folder": str(folder), "below": 2, "footprint": 0}
    timed = TimedBody(job, 0, 0, torch.device("cpu"))
    timed.connect({})
    (arguments,) = timed.arguments()
    with torch.no_grad(), AtenCalls() as calls:
        timed.body.main(*arguments)
    return calls.counts.total()


def test_a_step_of_llama(tmp_path: Path) -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=8,
            hidden_size=512,
            intermediate_size=1376,
            vocab_size=64,
            use_cache=False,
        )
    ).eval()
    ids = torch.randint(0, 64, (1, 16))
    mine = generated(model, ids, tmp_path)
    assert mine <= MOST
    assert mine <= by_hand(model, ids, torch.randint(0, 64, (1, 16)))
