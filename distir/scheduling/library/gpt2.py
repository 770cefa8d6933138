"""
GPT-2 as Megatron splits it: columns, then rows of each block, and the vocabulary; the
fraction `ratio` of the layers is recomputed in the backward.

The fused projection of queries, keys and values needs no request: it is split by heads
because the rows of the projection after the attention are.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over axis "t"."""
    layers = s["**.h.*"]
    layers["attn.c_proj"].split(Rows("t"))
    layers.plan({"mlp.c_fc": Columns("t"), "mlp.c_proj": Rows("t")})
    s["**.wte"].param("weight").split(0, "t")
    layers.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
