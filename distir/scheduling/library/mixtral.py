"""
A schedule for Mixtral, split as Megatron splits it. In each attention, the first
weights are split by columns and the second weight by rows. Each device has a part of
the experts and a part of the vocabulary. The knob `ratio` is the fraction of layers
that the backward pass recomputes.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over mesh axis "t", and the recomputation."""
    layers = s["model.layers.*"]
    for name in ("q_proj", "k_proj", "v_proj"):
        layers["self_attn"][name].split(Columns("t"))
    layers["self_attn.o_proj"].split(Rows("t"))
    layers["mlp.experts"].param("*_proj").split(0, "t")
    s["model.embed_tokens"].param("weight").split(0, "t")
    s["lm_head"].split(Columns("t"))
    layers.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
