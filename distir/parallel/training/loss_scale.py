"""
The scale of the loss in float16. A module reduces the scale when gradients overflow.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from distir.parallel.rank_program import RankProgram
from distir.parallel.training.stored_values import StoredValues


def has_smaller_scale(
    stored: StoredValues,
    program: RankProgram,
    results: Mapping[int, torch.Tensor],
    named: Mapping[str, torch.Tensor],
) -> bool:
    """
    Whether the gradients of a step overflowed and the scale of the loss can still be
    reduced. If so, the smaller scale is stored for all further steps. `results` holds
    the results of the step by index. Every rank must call this function.
    """
    scales = {s.name: s.loss_scale for s in program.all_arguments if s.loss_scale}
    if not scales:
        return False
    new = {
        program.results[i].updates: value
        for i, value in results.items()
        if program.results[i].updates in scales
    }
    change = torch.zeros((), dtype=torch.int64, device=program.device)
    for name, value in new.items():
        if scales[name] == "exponent":
            change = value - stored.tensor(name, named)
    dist.all_reduce(change, dist.ReduceOp.MIN)
    if change >= 0:
        return False
    for name, value in new.items():
        stored.tensor(name, named).copy_(value)
    return True
