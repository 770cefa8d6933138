"""Methods that CUDA replays as one graph, instead of starting their kernels one by one."""

from functools import cache, wraps

import torch
import torch.distributed as dist

from .runtime import report


@cache
def _compiled(function):
    return torch.compile(function, backend="cudagraphs", dynamic=False)


@cache
def _tell(name):
    """Says once, on rank 0, that a method is not captured."""
    if dist.is_initialized():
        report(f"on CPUs there are no CUDA graphs: the ops of {name} run one by one")


def captured(function):
    """
    Returns a method of the same name that is captured on GPUs; on CPUs it is the method
    itself. The results are copies, as the next replay writes to the memory of the graph.
    """

    @wraps(function)
    def method(self, *values):
        if not any(isinstance(x, torch.Tensor) and x.is_cuda for x in values):
            _tell(function.__name__)
            return function(self, *values)
        found = _compiled(function)(self, *values)
        if isinstance(found, torch.Tensor):
            return found.clone()
        return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in found)

    return method
