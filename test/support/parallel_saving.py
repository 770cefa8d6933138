"""Parallel modules that are written as models of transformers, which tests run on ranks."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize
from support.parallel_scripts import Options, batch, own_part, tiny_gpt


def saved_after_a_step(options: Options, folder: Path) -> dict[str, float]:
    """
    Trains GPT-2 for a step and saves it. Returns the largest differences of its whole
    parameters, and of those of the model that is loaded, from PyTorch's.
    """
    from transformers import GPT2LMHeadModel

    plain = tiny_gpt(layers=4)
    x, y = batch(0)
    parallel = parallelize(tiny_gpt(layers=4), (x,), loss="cross_entropy", **options)
    assert parallel.config.n_layer == 4
    parallel.train()
    plain.train()
    ours = torch.optim.SGD(parallel.parameters(), lr=0.1)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    parallel(own_part(parallel, x), own_part(parallel, y)).backward()
    ours.step()
    F.cross_entropy(plain(x).logits.flatten(0, 1), y.flatten()).backward()
    theirs.step()
    state = parallel.whole_state_dict()
    parallel.save_pretrained(folder)
    if dist.get_rank() > 0:
        assert not state
        return {"state": 0.0, "loaded": 0.0}
    expected = plain.state_dict()
    assert state.keys() == expected.keys()
    loaded = GPT2LMHeadModel.from_pretrained(folder).state_dict()
    return {
        "state": max(float((state[n] - v).abs().max()) for n, v in expected.items()),
        "loaded": max(float((loaded[n] - v).abs().max()) for n, v in expected.items()),
    }


def saved_without_a_way() -> str:
    """Returns the message for a module that has no `save_pretrained`."""
    x = torch.randn(4, 8)
    parallel = parallelize(nn.Linear(8, 8), (x,), loss="mse")
    try:
        parallel.save_pretrained("nowhere")
    except DistIRError as error:
        return str(error)
    return "no error"
