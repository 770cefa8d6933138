"""What a parallel module has of its source's class, and what it refuses."""

from __future__ import annotations

from typing import Any

import torch

from distir.parallel.parallelize import parallelize
from support.parallel_scripts import Options, batch, own_part, tiny_gpt
from support.parallel_shapes import message_of


def attributes_and_refusals(options: Options) -> dict[str, Any]:
    """The messages for calls that would have no effect, and values of attributes."""
    x, y = batch(0)
    source = tiny_gpt()
    parallel = parallelize(source, (x,), loss="cross_entropy", **options)
    parallel.train()
    found: dict[str, Any] = {
        "name": parallel.main_input_name,
        "parameters": parallel.num_parameters() == source.num_parameters(),
        "absent": hasattr(parallel, "absent"),
        "same": parallel.to("cpu") is parallel and parallel.float() is parallel,
        "source": parallel.source is source,
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
        "whole tensors": lambda: parallel.load_state_dict(source.state_dict()),
        "checkpointing": parallel.gradient_checkpointing_enable,
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
