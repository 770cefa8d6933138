"""
Uses of a parallel module that are refused, because they would have no effect or a wrong
one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Never

import torch
from torch import nn

from distir.errors import DistIRError

_HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)


def refuse_uses_of_parts(module: nn.Module) -> None:
    """
    Makes the submodules of a parallel module refuse hooks, calls, another mode and
    conversions with DistIRError. They only hold parameters: the program never calls
    them. Hooks on `module` itself run.
    """
    for part in module.modules():
        if part is not module:
            for name in _HOOKS:
                setattr(part, name, _no_hook)
            part.forward = _no_call  # pyright: ignore[reportAttributeAccessIssue]
            part.train = MethodType(_same_mode, part)  # pyright: ignore[reportAttributeAccessIssue]
            vars(part)["_apply"] = MethodType(_apply_nothing, part)


def _no_hook(*args: Any, **kwargs: Any) -> Never:
    raise DistIRError(
        "a part of a parallel module holds parameters and is not called, so that a hook on it "
        "would never run; register the hook on the parallel module itself, or on a parameter "
        "(register_hook), or return the value that it is to see from the module's forward"
    )


def _same_mode(part: nn.Module, mode: bool = True) -> nn.Module:
    if part.training != mode:
        name = "train" if mode else "eval"
        raise DistIRError(
            f"a part of a parallel module has the mode that it had when the module was "
            f"parallelized, and {name}() would not change it; call {name}() on the part "
            f"before parallelize, or on the whole module"
        )
    return part


def _apply_nothing(
    part: nn.Module,
    fn: Callable[[torch.Tensor], torch.Tensor],
    recurse: bool = True,
) -> nn.Module:
    check_conversion(part, fn)
    return part


def _no_call(*args: Any, **kwargs: Any) -> Never:
    raise DistIRError(
        "a part of a parallel module holds parameters and cannot be called; call the parallel "
        "module, or parallelize that part alone"
    )


def check_conversion(
    module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """
    Raises DistIRError if `convert` would change the type or the device of a parameter
    or buffer of a parallel module, or of a part of one. `convert` is the function that `to`, `half` or
    `cuda` apply to each tensor.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        probe = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        found = convert(probe)
        for what, before, now in (
            ("type", probe.dtype, found.dtype),
            ("device", probe.device, found.device),
        ):
            if before != now:
                raise DistIRError(
                    f"{name!r} of a parallel module has {what} {before}, for which its programs "
                    f"are compiled, and cannot be converted to {now}; convert the module before "
                    f"parallelize, or choose the type that it computes in with dtype=..."
                )


FOREIGN = (
    "a parallel module communicates by itself, and {who} would average its gradients a second "
    "time; use the module as it is, or, in scripts of Accelerate or of transformers.Trainer, "
    "import the class from distir.trainers: `from distir.trainers import Accelerator` or "
    "`from distir.trainers import Trainer`"
)
"""The error message for a wrapper, named `who`, that does not know parallel modules."""
