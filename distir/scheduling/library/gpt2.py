"""
GPT-2 as Megatron splits it: columns, then rows of each block, and the vocabulary; `ratio` of
the layers are computed again in the backward.

The fused projection of queries, keys and values follows: it is split by heads, as its rows
are behind the attention.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Asks for the splits over axis "t"."""
    layers = s["**.h.*"]
    layers["attn.c_proj"].split(Rows("t"))
    layers.plan({"mlp.c_fc": Columns("t"), "mlp.c_proj": Rows("t")})
    s["**.wte"].param("weight").split(0, "t")
    layers.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
