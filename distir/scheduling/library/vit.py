"""
A schedule for ViT, split as Megatron splits a transformer. In each block, the first
weights of attention and MLP are split by columns and the second weights by rows. The
knob `ratio` is the fraction of layers that the backward pass recomputes.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over mesh axis "t", and the recomputation."""
    layers = s["**.layers.*"]
    layers["attention"].merge("q_proj", "k_proj", "v_proj", name="qkv")
    layers.plan({"attention.qkv": Columns("t"), "attention.o_proj": Rows("t")})
    layers["mlp"].plan({"fc1": Columns("t"), "fc2": Rows("t")})
    layers.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
