"""
BERT as Megatron splits it: queries, keys and values in one product by columns, then rows, in
each block, and the vocabulary. Biases and GELU run as one kernel, and the fraction `ratio` of
the layers is recomputed in the backward.
"""

import torch
import torch.nn.functional as F

from distir.scheduling import Columns, Rows, Schedule


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The bias and activation of the first linear layer of an MLP."""
    return F.gelu(x + bias)


def schedule(s: Schedule) -> None:
    """Records the splits over axis "t"."""
    layers = s["**.layer.*"]
    layers["attention.self"].merge("query", "key", "value", name="qkv")
    layers.plan(
        {"attention.self.qkv": Columns("t"), "attention.output.dense": Rows("t")}
    )
    layers.plan({"intermediate.dense": Columns("t"), "output.dense": Rows("t")})
    s["**.word_embeddings"].param("weight").split(0, "t")
    layers.find(bias_gelu, optional=True).fuse("bias_gelu", "inductor")
    layers.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
