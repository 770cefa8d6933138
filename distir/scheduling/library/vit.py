"""
ViT as Megatron splits a transformer: columns, then rows of each block; `ratio` of the layers are
computed again in the backward.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over axis "t"."""
    layers = s["**.layers.*"]
    layers["attention"].merge("q_proj", "k_proj", "v_proj", name="qkv")
    layers.plan({"attention.qkv": Columns("t"), "attention.o_proj": Rows("t")})
    layers["mlp"].plan({"fc1": Columns("t"), "fc2": Rows("t")})
    layers.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
