"""Makes all ranks skip a step if gradients in float16 overflow on any rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from distir.parallel.weights import local_part


def spread_overflow(gradients: Sequence[torch.Tensor], device: torch.device) -> None:
    """
    Makes a gradient of this rank infinite, in place, if a gradient of any rank has a
    number that is not finite. `torch.amp.GradScaler` then skips the step on all ranks.
    Without this function, the scaler compares only the ranks that share the first
    gradient. Every rank must call this function.
    """
    found = torch.zeros((), device=device)
    own = [local_part(gradient) for gradient in gradients]
    own = [gradient for gradient in own if gradient.device == device]
    if own:
        one = torch.ones((), device=device)
        torch.ops.aten._amp_foreach_non_finite_check_and_unscale_(own, found, one)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    if own and found:
        own[0].fill_(torch.inf)
