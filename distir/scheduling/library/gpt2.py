"""
A schedule for GPT-2, split as Megatron splits it. In each block, the first weights of
attention and MLP are split by columns and the second weights by rows; the vocabulary is
split too. The knob `ratio` is the fraction of layers that the backward pass recomputes.

The fused projection of queries, keys and values needs no request. It is split by heads
because the projection after the attention is split by rows.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over mesh axis "t", and the recomputation."""
    layers = s["**.h.*"]
    layers["attn.c_proj"].split(Rows("t"))
    layers.plan({"mlp.c_fc": Columns("t"), "mlp.c_proj": Rows("t")})
    s["**.wte"].param("weight").split(0, "t")
    layers.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
