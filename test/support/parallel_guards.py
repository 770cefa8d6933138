"""What a parallel module has of its source's class, and what it refuses."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.fsdp import fully_shard

from distir.parallel.parallelize import parallelize
from support.parallel_scripts import Options, batch, own_part, tiny_gpt, whole
from support.parallel_shapes import message_of


def absent(module: nn.Module, name: str) -> str:
    """The message for an attribute that a module does not have."""
    try:
        getattr(module, name)
    except AttributeError as error:
        return str(error)
    return "no error"


def attributes_and_refusals(options: Options) -> dict[str, Any]:
    """The messages for calls that would have no effect, and values of attributes."""
    x, y = batch(0)
    source = tiny_gpt()
    earlier = torch.optim.AdamW(source.parameters())
    parallel = parallelize(source, (x,), loss="cross_entropy", **options)
    parallel.train()
    found: dict[str, Any] = {
        "name": parallel.main_input_name,
        "parameters": parallel.num_parameters() == source.num_parameters(),
        "absent": hasattr(parallel, "absent") or hasattr(parallel, "module"),
        "same": parallel.to("cpu") is parallel and parallel.float() is parallel,
        "source": parallel.source is source,
        "module of DDP": absent(parallel, "module"),
        "unshard of FSDP2": absent(parallel, "unshard"),
    }
    block = parallel.get_submodule("transformer.h")[0]
    for name, call in {
        "hook": lambda: block.register_forward_hook(print),
        "hook of a list": lambda: parallel.get_submodule(
            "transformer.h"
        ).register_full_backward_hook(print),
        "call": lambda: block(x),
        "half": parallel.half,
        "type": lambda: parallel.to(torch.float64),
        "device": lambda: parallel.to("meta"),
        "half of a part": block.half,
        "type of a part": lambda: block.ln_1.to(torch.float64),
        "mode of a part": block.eval,
        "compile": parallel.compile,
        "torch.compile": lambda: torch.compile(parallel),
        "saved": lambda: torch.save(parallel, io.BytesIO()),
        "a saved part": lambda: torch.save(block.ln_1, io.BytesIO()),
        "an earlier optimizer": earlier.step,
        "whole tensors": lambda: parallel.load_state_dict(source.state_dict()),
        "checkpointing": parallel.gradient_checkpointing_enable,
        "checkpointing of a part": parallel.transformer.gradient_checkpointing_enable,
        "channels_last": lambda: parallel.to(memory_format=torch.channels_last),
        "shared memory": parallel.share_memory,
        "fully_shard": lambda: fully_shard(parallel),
        "fully_shard of a part": lambda: fully_shard(block),
        "fully_shard of parts": lambda: fully_shard([block, parallel.lm_head]),
        "replicate": lambda: replicate(block.ln_1),
    }.items():
        found[name] = message_of(call)
    found["parts"] = parallel.load_state_dict(parallel.state_dict()) is not None
    found["modes"] = [
        block.training,
        parallel.eval().get_submodule("transformer.h")[0].training,
        block.eval().training,
        parallel.train() is parallel and block.training,
    ]
    seen: list[torch.Tensor] = []
    parallel.register_forward_hook(lambda module, args, loss: seen.append(loss))
    parts = own_part(parallel, x), own_part(parallel, y)
    with parallel.no_sync():
        loss = parallel(*parts)
    found["hook of the module"] = seen == [loss]
    return found


class Tempered(nn.Module):
    """Layers with what a script may want to replace; images pass a convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.filter = nn.Conv2d(2, 2, 1)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.drop = nn.Dropout(0.0)
        self.temperature = 2.0
        self.register_buffer("mask", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.filter(x)
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        return x * self.get_buffer("mask") / self.temperature


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight)


def _fill(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.bias, 0.25)


def replacements(options: Options) -> dict[str, Any]:
    """
    The messages for tensors, modules and attributes that are replaced after `parallelize`,
    and facts about the classes of parts.
    """
    x = torch.randn(4, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    parallel = parallelize(Tempered(), (x,), loss="mse", **options)
    first, second = parallel.layers
    new = nn.Parameter(torch.zeros(4, 4))
    found: dict[str, Any] = {
        name: message_of(call)
        for name, call in {
            "assigned": lambda: setattr(first, "weight", new),
            "assigned data": lambda: setattr(
                first.weight, "data", first.weight.data * 2
            ),
            "removed": lambda: setattr(first, "weight", None),
            "deleted": lambda: delattr(first, "weight"),
            "tied": lambda: setattr(first, "weight", second.weight),
            "registered": lambda: parallel.register_parameter("new", new),
            "registered on a part": lambda: first.register_parameter("new", new),
            "a module": lambda: setattr(parallel, "new", nn.Linear(4, 4)),
            "a buffer": lambda: setattr(parallel, "mask", torch.zeros(4)),
            "appended": lambda: parallel.layers.append(nn.Linear(4, 4)),
            "taken out": lambda: parallel.layers.pop(0),
            "put in": lambda: parallel.layers.__setitem__(0, nn.Linear(4, 4)),
            "by load_state_dict": lambda: parallel.load_state_dict(
                parallel.state_dict(), assign=True
            ),
            "parametrized": lambda: nn.utils.parametrizations.weight_norm(first),
            "an attribute": lambda: setattr(parallel, "temperature", 1.0),
            "a rate of dropout": lambda: setattr(parallel.drop, "p", 0.5),
            "apply": lambda: parallel.apply(_initialise),
            "channels_last": lambda: parallel.to(memory_format=torch.channels_last),
        }.items()
    }
    parallel.temperature = 2.0  # the same again
    parallel.layers[0].a_mark = True  # which no program reads
    parallel.to_empty(device="cpu")
    parallel.apply(_fill)
    found["filled"] = [whole(layer.bias).tolist() for layer in parallel.layers]
    found["linear"] = [
        name for name, part in parallel.named_modules() if isinstance(part, nn.Linear)
    ]
    found["attributes"] = parallel.layers[1].out_features, str(parallel.filter)
    found["kinds"] = isinstance(parallel.layers, nn.ModuleList), len(parallel.layers)
    parallel.train()
    own = own_part(parallel, x)
    found["trains"] = bool(parallel.step(own, own).isfinite())
    return found
