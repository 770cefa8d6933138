"""
A schedule for BERT, split as Megatron splits it. One product computes queries, keys and
values. In each block, the first weights of attention and MLP are split by columns and
the second weights by rows; the vocabulary is split too. The bias and the GELU run as
one kernel. The knob `ratio` is the fraction of layers that the backward pass
recomputes.
"""

import torch
import torch.nn.functional as F

from distir.scheduling import Columns, Rows, Schedule


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """
    The GELU of `x + bias`: the bias and the activation of the first linear layer of an
    MLP.
    """
    return F.gelu(x + bias)


def schedule(s: Schedule) -> None:
    """Records the splits over mesh axis "t", the fused kernel and the recomputation."""
    layers = s["**.layer.*"]
    layers["attention.self"].merge("query", "key", "value", name="qkv")
    layers.plan(
        {"attention.self.qkv": Columns("t"), "attention.output.dense": Rows("t")}
    )
    layers.plan({"intermediate.dense": Columns("t"), "output.dense": Rows("t")})
    s["**.word_embeddings"].param("weight").split(0, "t")
    layers.find(bias_gelu, optional=True).fuse("bias_gelu", "inductor")
    layers.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
