"""
Refuses conversions and wrappers of a parallel module that would have no effect or a
wrong effect.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.contract import STATE_KEY
from torch.distributed.tensor import DTensor

from distir.errors import DistIRError
from distir.parallel.scripts.optimizers import is_of_module


def check_conversion(
    module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """
    Raises DistIRError if `convert` would change the type, the device or the memory
    layout of a parameter or buffer of `module`, a parallel module or a part of one.
    `convert` is the function that `to`, `half` or `cuda` apply to each tensor.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        shape = [2] * tensor.ndim
        probe = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
        was_shared = probe.is_shared()
        found = convert(probe)
        for what, before, now in (
            ("type", probe.dtype, found.dtype),
            ("device", probe.device, found.device),
            ("strides like", probe.stride(), found.stride()),
        ):
            if before != now:
                raise DistIRError(
                    f"{name!r} of a parallel module has {what} {before}, for which its programs "
                    f"are compiled, and cannot be converted to {now}; convert the module before "
                    f"parallelize, or choose the type that it computes in with dtype=..."
                )
        if found.is_shared() and not was_shared:
            raise DistIRError(
                f"share_memory: {name!r} of a parallel module is this rank's part, which the "
                f"programs of other processes do not use; share the whole values "
                f"(whole_state_dict() of rank 0), or the module before parallelize"
            )


@cache
def refuse_assigned_data() -> None:
    """
    Makes `parameter.data = value` raise a DistIRError, in this process, for parameters
    of parallel modules. Otherwise PyTorch's DTensor would silently keep its old values.
    """
    data: Any = torch.Tensor.data

    def assign(self: DTensor, value: torch.Tensor) -> None:
        if is_of_module(self):
            raise DistIRError(
                "parameter.data = value leaves the values of a DTensor as they were, and the "
                "parameters of a parallel module are such; copy values in place: "
                "parameter.data.copy_(value), of a DTensor with the same layout"
            )
        data.__set__(self, value)

    kind: Any = DTensor
    kind.data = property(data.__get__, assign)


FOREIGN = (
    "a parallel module communicates by itself, and {who} would average its gradients a second "
    "time; use the module as it is, or, in scripts of Accelerate or of transformers.Trainer, "
    "import the class from distir.trainers: `from distir.trainers import Accelerator` or "
    "`from distir.trainers import Trainer`"
)
"""The error message for a wrapper, named `who`, that does not know parallel modules."""


_INSTEAD = {
    "fully_shard": "zero=3 splits parameters, gradients and states",
    "replicate": "d= is the number of ranks that split the batch",
    "checkpoint": 'checkpoint="full" recomputes each layer',
}
"""The option of `parallelize` for each composable function of PyTorch, in words."""


class _NoComposableFunctions(dict[Any, Any]):
    """
    The composable functions of PyTorch (`fully_shard`, `replicate`, `checkpoint`) that
    were applied to a module. Such a function looks itself up before it changes the
    module, and the look-up raises DistIRError.
    """

    def __contains__(self, function: object) -> bool:
        name = getattr(function, "__name__", str(function))
        instead = _INSTEAD.get(name)
        raise DistIRError(
            f"{name}: the programs of a parallel module communicate by themselves, and its "
            f"parameters are split already, so that {name} can be applied neither to it "
            f"nor to a part of it; leave {name} out"
            + (f" and use the options of parallelize ({instead})" if instead else "")
        )


def refuse_composable_functions(module: nn.Module) -> None:
    """
    Makes PyTorch's composable functions raise a DistIRError for `module`, a parallel
    module or a part of one.
    """
    vars(module)[STATE_KEY] = _NoComposableFunctions()
