"""
Refuses conversions and wrappers of a parallel module that would have no effect or a
wrong effect.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from distir.errors import DistIRError


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


FOREIGN = (
    "a parallel module communicates by itself, and {who} would average its gradients a second "
    "time; use the module as it is, or, in scripts of Accelerate or of transformers.Trainer, "
    "import the class from distir.trainers: `from distir.trainers import Accelerator` or "
    "`from distir.trainers import Trainer`"
)
"""The error message for a wrapper, named `who`, that does not know parallel modules."""
