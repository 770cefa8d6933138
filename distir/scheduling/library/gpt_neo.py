"""
A schedule for GPT-Neo, split as Megatron splits GPT-2. In each block, the first weights
of attention and MLP are split by columns and the second weights by rows; the vocabulary
is split too. The knob `ratio` is the fraction of layers that the backward pass
recomputes.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over mesh axis "t", and the recomputation."""
    layers = s["**.h.*"]
    layers["attn.attention"].merge("q_proj", "k_proj", "v_proj", name="qkv")
    layers["attn.attention"].plan({"qkv": Columns("t"), "out_proj": Rows("t")})
    layers["mlp"].plan({"c_fc": Columns("t"), "c_proj": Rows("t")})
    s["**.wte"].param("weight").split(0, "t")
    layers.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
