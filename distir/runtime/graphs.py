"""
Methods that CUDA replays as one graph, instead of starting their kernels one by one.
"""

from functools import cache, wraps

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from .runtime import report


@cache
def _compiled(function):
    return torch.compile(function, backend="cudagraphs", dynamic=False)


@cache
def _tell(name):
    """Reports once, on rank 0, that method `name` does not run as a CUDA graph."""
    if dist.is_initialized():
        report(f"on CPUs there are no CUDA graphs: the ops of {name} run one by one")


def captured(function):
    """
    Returns a method that runs `function` as a CUDA graph on GPUs, and without a graph
    on CPUs. The results are copies, because the next replay overwrites the memory of
    the graph.
    """

    @wraps(function)
    def method(self, *values):
        if not any(isinstance(x, torch.Tensor) and x.is_cuda for x in values):
            _tell(function.__name__)
            return function(self, *values)
        # Results may be lists, such as the tensors that a layer saves for its backward.
        return tree_map_only(
            torch.Tensor, torch.clone, _compiled(function)(self, *values)
        )

    return method
